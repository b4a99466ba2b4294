// Links to other brokers: shovels, and federation of exchanges and queues. Both are defined as parameters and policies.

import { count, h, panel } from "../dom.js";
import { get, path, remove } from "../api.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";

const reason = (text) => (text ? h("span", { class: "bad" }, text) : "");

const columns = (name, from, to, state, why, actions) => [
  { name: "Virtual host", key: "vhost", cell: (one) => one.vhost }, ...name, ...from, ...to,
  { name: "State", key: state, cell: (one) => one[state] }, { name: "Member", key: "node", cell: (one) => one.node },
  { name: "Forwarded", key: "forwarded", right: true, cell: (one) => count(one.forwarded) }, { name: "Reason", cell: (one) => reason(one[why]) },
  { name: "Actions", cell: actions },
];

const end = (...names) => names.filter(Boolean).join(" ");

const shovels = (update) => table({
  label: "Shovels", id: (one) => `${one.vhost}/${one.name}`, source: () => get(path("shovels")), empty: "None is defined.",
  columns: columns([{ name: "Name", key: "name", cell: (one) => one.name }],
    [{ name: "From", cell: (one) => end(one.src_uri, one.src_queue, one.src_exchange) }],
    [{ name: "To", cell: (one) => end(one.dest_uri, one.dest_queue, one.dest_exchange) }], "state", "reason",
    (one) => dangerous("Restart", `Begin shovel ${one.name} anew?`,
      () => attempt(() => remove(path("shovels", "vhost", one.vhost, one.name, "restart")), `Shovel ${one.name} begins anew.`).then(update))),
});

const federation = (update) => table({
  label: "Federation links", id: (one) => one.id, source: () => get(path("federation-links")),
  empty: "None: a policy with federation-upstream or federation-upstream-set makes them.",
  columns: columns([{ name: "Kind", key: "type", cell: (one) => one.type }, { name: "Name", cell: (one) => one.exchange ?? one.queue }],
    [{ name: "Upstream", key: "upstream", cell: (one) => one.upstream }],
    [{ name: "From", cell: (one) => end(one.uri, one.upstream_exchange, one.upstream_queue) }], "status", "error",
    (one) => dangerous("Restart", `Begin the link of ${one.exchange ?? one.queue} to ${one.upstream} anew?`,
      () => attempt(() => remove(path("federation-links", "vhost", one.vhost, one.id, "restart")), "The link begins anew.").then(update))),
});

export function links() {
  const update = () => Promise.all([linked.update(), shovelled.update()]);
  const linked = federation(update), shovelled = shovels(update);
  return { title: "Links", update, node: h("div", {}, linked.node, panel("Shovels", shovelled.node)) };
}
