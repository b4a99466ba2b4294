// All queues, paged by the member; a queue can be declared here.

import { count, h, link, pill, rate } from "../dom.js";
import { path, put } from "../api.js";
import { field, fold, form, json } from "../forms.js";
import { table } from "../table.js";
import { vhostField } from "./vhost_field.js";

export const queueState = (one) => pill(one.state === "running" || !one.state ? "good" : one.state === "idle" ? "off" : "warn", one.state ?? "running");

export const flags = (one) => [
  one.type === "stream" && h("abbr", { title: "a stream: read without being consumed" }, "Stream"), one.durable && h("abbr", { title: "durable" }, "D"), one.auto_delete && h("abbr", { title: "deleted when it is not used any more" }, "AD"),
  one.exclusive && h("abbr", { title: "exclusive to one connection" }, "Excl"), one.internal && h("abbr", { title: "internal" }, "I"),
  Object.keys(one.arguments ?? {}).length > 0 && h("abbr", { title: JSON.stringify(one.arguments) }, "Args")].filter(Boolean).flatMap((flag) => [flag, " "]);

export function queues() {
  const list = table({
    label: "Queues", source: path("queues"), id: (one) => `${one.vhost}/${one.name}`, empty: "No queue is here, or none has such a name.",
    columns: [
      { name: "Name", key: "name", cell: (one) => link(one.name, "queue", one.vhost, one.name) },
      { name: "Virtual host", key: "vhost", cell: (one) => one.vhost },
      { name: "Features", roomy: true, cell: flags },
      { name: "Policy", roomy: true, key: "policy", cell: (one) => one.policy ?? "" },
      { name: "State", roomy: true, key: "state", cell: queueState },
      { name: "Ready", key: "messages_ready", right: true, cell: (one) => count(one.messages_ready ?? 0) },
      { name: "Unacked", key: "messages_unacknowledged", right: true, cell: (one) => count(one.messages_unacknowledged ?? 0) },
      { name: "Total", key: "messages", right: true, cell: (one) => count(one.messages ?? 0) },
      { name: "Consumers", roomy: true, key: "consumers", right: true, cell: (one) => count(one.consumers ?? 0) },
      { name: "In", key: "message_stats.publish_details.rate", right: true, cell: (one) => rate(one.message_stats?.publish_details) },
      { name: "Out", key: "message_stats.deliver_get_details.rate", right: true, cell: (one) => rate(one.message_stats?.deliver_get_details) },
    ],
  });
  const declare = fold("Declare a queue", form("Declare a queue", "Declare", [
    vhostField(), field("Name", "name", { required: true }),
    field("Durable", "durable", { type: "checkbox", checked: true, value: "yes" }),
    field("Delete when unused", "auto_delete", { type: "checkbox", value: "yes" }),
    field("Arguments", "arguments", { type: "area", hint: 'JSON, for example {"x-max-length": 1000}' }),
  ], async (values) => {
    await put(path("queues", values.vhost, values.name), {
      durable: Boolean(values.durable), auto_delete: Boolean(values.auto_delete), arguments: json(values.arguments) });
    await list.update();
  }, { done: (values) => `Queue ${values.name} is declared.` }));
  return { title: "Queues", update: list.update, node: h("div", {}, list.node, declare) };
}
