// One queue: depth and rates of the last minute, what policy is in force, its bindings and consumers; publish, get, move, purge, delete.

import { bytes, count, duration, facts, h, link, panel, replace, when } from "../dom.js";
import { get, path, post, query, remove } from "../api.js";
import { LAST_MINUTE, Series, chart, growth, levels } from "../chart.js";
import { field, fold, form, json } from "../forms.js";
import { attempt, dangerous, tell } from "../notices.js";
import { table } from "../table.js";
import { bindingTable } from "./bindings.js";
import { flags, queueState } from "./queues.js";

const text = (value) => (value && Object.keys(value).length ? h("code", {}, JSON.stringify(value)) : "none");

const kept = ({ bytes: size, seconds }) => [size !== null && `up to ${bytes(size)}`, seconds !== null && `${duration(seconds * 1000)} long`].filter(Boolean).join(", ") || "everything";

export function queue(vhost, name) {
  const address = path("queues", vhost, name), depths = new Series(), flows = new Series();
  const depth = chart("Messages", "", [["ready", "ready"], ["unacked", "unacknowledged"]], depths);
  const flow = chart("Rates", "/s", [["publish", "published"], ["deliver", "delivered"], ["ack", "acknowledged"]], flows);
  const about = h("div"), found = h("div", { class: "found", "aria-live": "polite" });
  const bindings = bindingTable(() => get(path("queues", vhost, name, "bindings")), { to: { vhost, type: "q", name } });
  let consumers = [];
  const consumerList = table({
    label: "Consumers", filter: false, source: async () => consumers, id: (one) => one.consumer_tag, empty: "Nobody consumes from this queue.",
    columns: [
      { name: "Tag", cell: (one) => one.consumer_tag }, { name: "Channel", cell: (one) => one.channel_details?.name ?? "" },
      { name: "Reads next", right: true, cell: (one) => (one.offset === undefined ? "" : count(one.offset)) },
      { name: "Lag", right: true, cell: (one) => (one.offset_lag === undefined ? "" : `${count(one.offset_lag)}${one.filtered ? ", filtered" : one.browses ? ", browses" : ""}`) },
      { name: "Acknowledges", cell: (one) => (one.ack_required ? "yes" : "no") }, { name: "Prefetch", right: true, cell: (one) => count(one.prefetch_count) },
    ],
  });

  async function update() {
    const one = await get(query(address, LAST_MINUTE));
    depths.samples = levels(one, { ready: "messages_ready", unacked: "messages_unacknowledged" });
    flows.samples = growth(one.message_stats, { publish: "publish", deliver: "deliver_get", ack: "ack" });
    depth.draw();
    flow.draw();
    replace(about, facts([
      ["Virtual host", one.vhost], ["State", queueState(one)], ["Features", flags(one).length ? flags(one) : "none"],
      ["Ready", count(one.messages_ready ?? 0)], ["Unacknowledged", count(one.messages_unacknowledged ?? 0)],
      one.replaced !== undefined && ["Replaced by newer ones", count(one.replaced)],
      one.messages_dlx !== undefined && ["Dead letters that wait", count(one.messages_dlx)],
      one.groups !== undefined && ["Message groups", `${count(one.groups)}, of which consumers hold ${count(one.groups_held)}${one.groups_kept === undefined ? "" : ` and ${count(one.groups_kept)} stay with theirs`}`],
      one.browsers !== undefined && ["Browsed by", `${count(one.browsers)}, the one furthest behind by ${count(one.max_offset_lag)} messages`],
      one.type === "stream" && ["Offsets", one.messages ? `${count(one.first_offset)} to ${count(one.next_offset - 1)}` : `none; the next one is ${count(one.next_offset)}`],
      one.type === "stream" && ["Reader furthest behind", one.consumers ? `${count(one.max_offset_lag)} messages` : "nobody reads"],
      one.type === "stream" && ["Keeps", kept(one.retention)],
      ["Total", count(one.messages ?? 0)], ["Body bytes", bytes(one.message_bytes)], ["Consumers", count(one.consumers ?? 0)],
      ["Policy", one.policy ? link(one.policy, "policies") : "none"], one.operator_policy && ["Operator policy", one.operator_policy],
      ["Effective policy", text(one.effective_policy_definition)], ["Arguments", text(one.arguments)],
      ["Held by", [one.node, ...(one.slave_nodes ?? [])].filter(Boolean).join(", ") || "every member"],
      one.idle_since && ["Idle since", one.idle_since],
    ]));
    consumers = one.consumer_details ?? [];
    for (const part of notOfStreams) part.hidden = one.type === "stream";
    await Promise.all([consumerList.update(), bindings.update()]);
  }

  const publish = form("Publish a message", "Publish", [
    field("Payload", "payload", { type: "area" }),
    field("Properties", "properties", { type: "area", hint: 'JSON, for example {"content_type": "text/plain", "headers": {"k": 1}}' }),
    field("Persistent", "persistent", { type: "checkbox", checked: true, value: "yes" }),
  ], async (values) => {
    const answer = await post(path("exchanges", vhost, "amq.default", "publish"), {
      routing_key: name, payload: values.payload, payload_encoding: "string",
      properties: { ...(values.persistent ? { delivery_mode: 2 } : {}), ...json(values.properties) } });
    if (!answer.routed) throw new Error("The message was not routed: the queue is gone.");
    await update();
  }, { done: "The message is in the queue." });

  const take = form("Get messages", "Get", [
    field("Messages", "count", { type: "number", min: 1, max: 1000, value: 1, required: true }),
    field("Mode", "ackmode", { options: [["ack_requeue_true", "look: put back"], ["ack_requeue_false", "take: remove from the queue"], ["reject_requeue_false", "reject: dead-letter"]] }),
    field("Encoding", "encoding", { options: [["auto", "text if it is UTF-8"], ["base64", "base64"]] }),
  ], async (values) => {
    const messages = await post(path("queues", vhost, name, "get"), { count: Number(values.count), ackmode: values.ackmode, encoding: values.encoding, truncate: 50000 });
    replace(found, messages.length ? messages.map(message) : h("p", { class: "empty" }, "The queue gave no message."));
    await update();
  }, { keep: true });

  const move = form("Move messages", "Move", [
    field("To queue", "to", { required: true, hint: "of the same virtual host" }),
    field("Messages at most", "count", { type: "number", min: 1, hint: "all, when left empty" }),
  ], async (values) => {
    const answer = await post(path("queues", vhost, name, "move"), { to: values.to, ...(values.count ? { count: Number(values.count) } : {}) });
    tell(`${count(answer.moved)} message${answer.moved === 1 ? "" : "s"} moved to ${values.to}.`);
    await update();
  });

  const purge = dangerous("Purge", `Remove all ready messages of queue ${name}? They are lost.`, () => attempt(() => remove(path("queues", vhost, name, "contents")), `Queue ${name} is purged.`).then(update));
  const getting = panel("Get messages", take, found), moving = fold("Move messages", move), notOfStreams = [getting, moving, purge];

  return { title: `Queue ${name}`, update, node: h("div", { class: "grid" },
    h("section", { class: "panel", "aria-label": "Depth" }, depth.figure), h("section", { class: "panel", "aria-label": "Rates" }, flow.figure),
    panel("Details", about), getting,
    fold("Publish a message", publish), moving,
    panel("Bindings", bindings.node), panel("Consumers", consumerList.node),
    panel("Remove", h("div", { class: "actions" },
      purge,
      dangerous("Delete", `Delete queue ${name} and its messages?`, async () => {
        if (await attempt(() => remove(address), `Queue ${name} is deleted.`)) location.hash = "#/queues";
      })))) };
}

function message(one, index) {
  return h("article", { class: "message", "aria-label": `Message ${index + 1}` },
    facts([
      ["Exchange", one.exchange || "(default)"], ["Routing key", one.routing_key], ["Redelivered", one.redelivered ? "yes" : "no"],
      ["Left in queue", count(one.message_count)], ["Properties", text(one.properties)],
      one.properties?.timestamp && ["Stamped", when(one.properties.timestamp * 1000)], ["Encoding", one.payload_encoding],
    ]), h("pre", { tabindex: "0", "aria-label": "Payload" }, one.payload));
}
