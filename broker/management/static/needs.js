// What needs looking after, from what a member says of its cluster: what it is, what follows, what to do.
// `qpidctl check_cluster` says the same and more (queues, shovels, certificates).

import { h, panel, pill, replace, when } from "./dom.js";

const BLOCKED = "Publishers wait at all members; consumers go on.";
const ALARMS = [
  ["low on disk", "bad", BLOCKED, "Free space on that member's disk, consume, or purge. Publishers go on by themselves."],
  ["low on memory", "bad", BLOCKED, "Consume or purge long queues, or give that member a higher memory-limit: in the file of its --config, then SIGHUP; without one by a restart."],
  ["disk full", "bad", BLOCKED, "Free space on that disk. Nothing that was confirmed is lost."],
  ["the disk lags", "warn", "The whole cluster is slowed down for that disk.", "Look what else writes there."],
  ["the clock of", "warn", "It goes on, but could not join again with this clock.", "Set the clock of that machine right."],
];

// Since when a member is in no view, where one with it is remembered.
function since(cluster, id) {
  const views = cluster.views ?? [], last = views.findLastIndex((view) => view.members.includes(id));
  return last >= 0 && last + 1 < views.length ? ` since ${when(views[last + 1].at_ms)}` : "";
}

export function needs(cluster) {
  const found = [], members = cluster.members ?? [], votes = cluster.quorum ?? {}, active = cluster.status === "ACTIVE";
  if (!active) {
    const [why, ...rest] = (cluster.reason || "it does not say why").split(". ");
    found.push({ kind: "bad", short: cluster.status, what: `This member does not serve: ${why}.`, follows: "Clients that come here wait, or go to another member.",
      act: rest.join(". ") || (cluster.status === "JOINING" ? "Wait: it gets what it missed." : "Start the members that are missing, or repair the network to them.") });
  }
  const away = active ? members.filter((one) => one.state === "DOWN") : [], spare = (votes.total_votes ?? 0) - (votes.quorum ?? 0);
  for (const one of away) found.push({ kind: "warn", short: away.length > 1 ? `${away.length} members down` : "1 member down", what: `${one.id} is down${since(cluster, one.id)}.`,
    follows: spare < 1 ? "The next member that is lost stops the cluster." : `The others go on, and can lose ${spare} more vote${spare > 1 ? "s" : ""}.`,
    act: "Start it with its old data directory. If it ends again, the last line of its log says why." });
  const alarms = cluster.alarms ?? [];
  for (const alarm of alarms) {
    const [, kind, follows, act] = ALARMS.find(([begins]) => alarm.includes(begins)) ?? ["", "warn", "", "The log of that member says more."];
    found.push({ kind, short: alarms.length > 1 ? `${alarms.length} alarms` : "1 alarm", what: `${alarm}.`, follows, act });
  }
  for (const id of cluster.drained ?? []) found.push({ kind: "warn", short: "drained", what: `${id} is drained: it lets no client in.`,
    follows: "It votes and holds messages like the others.", act: "Undrain it when its maintenance is over (page Members)." });
  for (const link of cluster.links_down ?? []) found.push({ kind: "warn", short: "link down", what: `The link to ${link} is down.`,
    follows: "Its member is reached over the other network.", act: "Repair that network." });
  return found.sort((a, b) => (a.kind === "bad" ? 0 : 1) - (b.kind === "bad" ? 0 : 1));
}

// Hidden where there is nothing; `draw` is to be called as news comes in.
export function needsPanel() {
  const list = h("ul", { class: "alarms needs" }), node = h("div", { class: "wide", hidden: true }, panel("Needs looking after", list));
  let before = "";
  return { node, draw(cluster) {
    const found = needs(cluster), said = JSON.stringify(found);
    if (said === before) return; // a text that is being read or copied stays as it is
    before = said;
    node.hidden = !found.length;
    replace(list, found.map((one) => h("li", {}, pill(one.kind, one.kind === "bad" ? "critical" : "warning"), h("strong", {}, one.what),
      h("p", {}, [one.follows, one.act].filter(Boolean).join(" ")))));
  } };
}
