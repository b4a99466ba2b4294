// Members: their roles and state, joins under way, the history of views; a member can be forced out.

import { bytes, count, duration, h, panel, pill, replace, when } from "../dom.js";
import { get, path, put, remove } from "../api.js";
import { now, poll } from "../live.js";
import { needsPanel } from "../needs.js";
import { attempt, dangerous } from "../notices.js";
import { KINDS, ringPicture } from "../ring.js";
import { table } from "../table.js";

const stop = (member) => dangerous("Force out", `Force member ${member.id} out of the cluster? Its clients are sent away; it stays out until it is started again.`,
  () => attempt(() => remove(path("qpid", "members", member.id)), `${member.id} was told to leave.`).then(poll));

const drain = (member, on) => h("button", { type: "button", onclick: () =>
  attempt(() => (on ? put : remove)(path("qpid", "members", member.id, "drain")), on ? `${member.id} sends its clients away.` : `${member.id} takes clients again.`).then(poll) },
  on ? "Drain" : "Undrain");

export function members() {
  let nodes = [];
  const node = (member) => nodes.find((one) => one.name === member.id || one.name?.split("@")[1] === member.id || one.name?.split("@")[0] === member.id) ?? {};
  const role = (member) => (member.arbitrator ? "arbitrator" : member.voter ? `${count(member.votes ?? 1)} vote${member.votes > 1 ? "s" : ""}` : "guest");
  const drained = (member) => (now.cluster?.drained ?? []).includes(member.id);
  const list = table({
    label: "Members", filter: false, id: (one) => one.id, source: async () => now.cluster?.members ?? [],
    columns: [
      { name: "Name", key: "id", cell: (one) => [one.id, one.local && h("small", {}, " this member")] },
      { name: "State", key: "state", cell: (one) => [pill(KINDS[one.state] ?? "warn", one.state), drained(one) && pill("warn", "drained")] },
      { name: "Role", cell: role },
      { name: "Position", roomy: true, key: "position", right: true, cell: (one) => count(one.state === "DOWN" ? undefined : one.position) },
      { name: "Memory", roomy: true, right: true, cell: (one) => bytes(node(one).mem_used) },
      { name: "Disk free", roomy: true, right: true, cell: (one) => bytes(node(one).disk_free) },
      { name: "Up for", roomy: true, right: true, cell: (one) => duration(node(one).uptime) },
      { name: "Address", roomy: true, cell: (one) => one.url },
      { name: "Actions", cell: (one) => (one.state === "DOWN" ? "" : h("div", { class: "actions tight" }, drain(one, !drained(one)), stop(one))) },
    ],
  });
  const picture = h("div", { class: "beside" }), joins = h("div"), history = h("ol", { class: "history" }), attention = needsPanel();

  async function update() {
    nodes = await get(path("nodes"));
    live();
    await list.update();
  }

  function live() {
    const cluster = now.cluster;
    if (!cluster) return;
    attention.draw(now.found);
    replace(picture, ringPicture(cluster));
    const joining = cluster.members.filter((one) => cluster.quorum?.quorate && one.state === "JOINING"); // else it waits for others
    replace(joins, joining.map((one) => h("div", { class: "transfer" },
      "received_percent" in one
        ? h("label", {}, `${one.id} has received ${one.received_percent} % of the state `,
          h("progress", { max: 100, value: one.received_percent }))
        : h("label", {}, `${one.id} is at position ${count(one.position)} of ${count(cluster.position)} `,
          h("progress", { max: Math.max(1, cluster.position), value: Math.min(one.position, cluster.position) })))),
      cluster.status === "JOINING" ? h("p", {}, cluster.reason || "This member is joining.")
      : !joining.length && h("p", { class: "empty" }, "No join is under way."));
    const views = [...(cluster.views ?? [])].reverse();
    replace(history, views.length ? views.map((view) => h("li", {},
      h("time", {}, when(view.at_ms)), ` ring ${view.ring}: `, view.members.join(", ") || "nobody",
      h("small", {}, ` ${view.primary ? `primary view of epoch ${view.epoch}` : "not primary"}${view.reason ? `; ${view.reason}` : ""}`)))
      : h("li", { class: "empty" }, "No view has been seen since this member started."));
  }

  return { title: "Members", update, live, node: h("div", { class: "grid" },
    attention.node, h("div", { class: "wide" }, list.node),
    panel("Ring and quorum", picture), h("div", {}, panel("Joins", joins), panel("View history", history))) };
}
