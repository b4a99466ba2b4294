// One exchange: what it routes where; publish to it, or delete it.

import { facts, h, panel, rate, replace } from "../dom.js";
import { get, path, post, remove } from "../api.js";
import { field, fold, form, json } from "../forms.js";
import { attempt, dangerous } from "../notices.js";
import { bindingTable } from "./bindings.js";
import { flags } from "./queues.js";

export function exchange(vhost, name) {
  const address = path("exchanges", vhost, name), about = h("div"), isDefault = name === "amq.default";
  const bindings = bindingTable(() => get(path("exchanges", vhost, name, "bindings", "source")), { from: { vhost, name } });

  async function update() {
    const one = await get(address);
    replace(about, facts([
      ["Virtual host", one.vhost], ["Type", one.type], ["Features", flags(one).length ? flags(one) : "none"], ["Policy", one.policy ?? "none"],
      ["Arguments", Object.keys(one.arguments ?? {}).length ? h("code", {}, JSON.stringify(one.arguments)) : "none"],
      ["In", rate(one.message_stats?.publish_in_details)], ["Out", rate(one.message_stats?.publish_out_details)],
    ]));
    if (!isDefault) await bindings.update();
  }

  const publish = form("Publish a message", "Publish", [
    field("Routing key", "routing_key"), field("Payload", "payload", { type: "area" }),
    field("Properties", "properties", { type: "area", hint: 'JSON, for example {"delivery_mode": 2}' }),
  ], async (values) => {
    const answer = await post(path("exchanges", vhost, name, "publish"), {
      routing_key: values.routing_key, payload: values.payload, payload_encoding: "string", properties: json(values.properties) });
    if (!answer.routed) throw new Error("No queue is bound for this routing key: the message was dropped.");
  }, { done: "The message was routed.", keep: true });

  return { title: `Exchange ${isDefault ? "(default)" : name}`, update, node: h("div", { class: "grid" },
    panel("Details", about),
    panel("Bindings", isDefault ? h("p", {}, "Every queue is bound to the default exchange by its own name.") : bindings.node),
    fold("Publish a message", publish),
    !isDefault && !name.startsWith("amq.") && panel("Remove", h("div", { class: "actions" },
      dangerous("Delete", `Delete exchange ${name} and its bindings?`, async () => {
        if (await attempt(() => remove(address), `Exchange ${name} is deleted.`)) location.hash = "#/exchanges";
      })))) };
}
