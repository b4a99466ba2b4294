// All exchanges, paged by the member; an exchange can be declared here.

import { h, link, rate } from "../dom.js";
import { path, put } from "../api.js";
import { field, fold, form, json } from "../forms.js";
import { table } from "../table.js";
import { flags } from "./queues.js";
import { vhostField } from "./vhost_field.js";

export function exchanges() {
  const list = table({
    label: "Exchanges", source: path("exchanges"), id: (one) => `${one.vhost}/${one.name}`,
    columns: [
      { name: "Name", key: "name", cell: (one) => link(one.name || "(default)", "exchange", one.vhost, one.name || "amq.default") },
      { name: "Virtual host", key: "vhost", cell: (one) => one.vhost },
      { name: "Type", key: "type", cell: (one) => one.type },
      { name: "Features", roomy: true, cell: flags },
      { name: "Policy", roomy: true, key: "policy", cell: (one) => one.policy ?? "" },
      { name: "In", right: true, cell: (one) => rate(one.message_stats?.publish_in_details) },
      { name: "Out", right: true, cell: (one) => rate(one.message_stats?.publish_out_details) },
    ],
  });
  const declare = fold("Declare an exchange", form("Declare an exchange", "Declare", [
    vhostField(), field("Name", "name", { required: true }),
    field("Type", "type", { options: ["direct", "fanout", "topic", "headers",
      "x-consistent-hash", "x-modulus-hash", "x-random"] }),
    field("Durable", "durable", { type: "checkbox", checked: true, value: "yes" }),
    field("Delete when unused", "auto_delete", { type: "checkbox", value: "yes" }),
    field("Internal", "internal", { type: "checkbox", value: "yes" }),
    field("Arguments", "arguments", { type: "area", hint: 'JSON, for example {"alternate-exchange": "lost"}' }),
  ], async (values) => {
    await put(path("exchanges", values.vhost, values.name), {
      type: values.type, durable: Boolean(values.durable), auto_delete: Boolean(values.auto_delete),
      internal: Boolean(values.internal), arguments: json(values.arguments) });
    await list.update();
  }, { done: (values) => `Exchange ${values.name} is declared.` }));
  return { title: "Exchanges", update: list.update, node: h("div", {}, list.node, declare) };
}
