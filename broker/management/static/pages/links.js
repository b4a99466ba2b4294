// Links to other brokers: shovels, federation of exchanges and queues, and replicas of queues. They are defined as parameters and policies.

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

const replicas = (update) => table({
  label: "Replicas", id: (one) => `${one.vhost}/${one.queue}`, source: () => get(path("queue-replicas")),
  empty: "None: qpid-ha replicate QUEUE URL keeps a queue the same as one of a broker elsewhere.",
  columns: columns([{ name: "Queue", key: "queue", cell: (one) => one.queue }], [{ name: "Of", cell: (one) => end(one.src_uri, one.src_queue) }],
    [{ name: "Level", cell: (one) => (one.level ? "level" : one.behind) }], "state", "reason",
    (one) => dangerous("Stop", `Have ${one.queue} be a queue of its own from now on?`,
      () => attempt(() => remove(path("parameters", "queue-replica", one.vhost, one.queue)), `${one.queue} is a queue of its own.`).then(update))),
});

export function links() {
  const update = () => Promise.all([linked.update(), shovelled.update(), replicated.update()]);
  const linked = federation(update), shovelled = shovels(update), replicated = replicas(update);
  return { title: "Links", update, node: h("div", {}, linked.node, panel("Shovels", shovelled.node), panel("Replicas of queues elsewhere", replicated.node)) };
}
