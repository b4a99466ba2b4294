// The cluster at a glance: counts, the charts of this session, the ring, the members' listeners.

import { count, duration, facts, h, link, panel, pill, replace } from "../dom.js";
import { chart } from "../chart.js";
import { messages, now, rates } from "../live.js";
import { needsPanel } from "../needs.js";
import { ringPicture } from "../ring.js";

const RATES = [["publish", "published"], ["deliver", "delivered"], ["ack", "acknowledged"], ["confirm", "confirmed"]];
const TOTALS = [["queues", "Queues"], ["exchanges", "Exchanges"], ["connections", "Connections"], ["channels", "Channels"], ["consumers", "Consumers"]];
const LINKED = new Set(["queues", "exchanges", "connections", "channels"]);

export function overview() {
  const depth = chart("Messages in queues", "", [["ready", "ready"], ["unacked", "unacknowledged"]], messages);
  const flow = chart("Message rates", "/s", RATES, rates);
  const tiles = h("ul", { class: "tiles", "aria-label": "Totals" }), ring = h("div", { class: "beside" }), about = h("div"), attention = needsPanel();
  const ringPanel = panel("Ring and quorum", ring);

  function live() {
    const { overview: found, cluster } = now;
    if (!found) return;
    const totals = found.object_totals ?? {}, queued = found.queue_totals ?? {};
    replace(tiles,
      h("li", {}, h("b", {}, count(queued.messages ?? 0)), h("span", {}, "Messages")),
      TOTALS.map(([key, title]) => h("li", {}, h("b", {}, count(totals[key] ?? 0)), LINKED.has(key) ? link(title, key) : h("span", {}, title))));
    depth.draw();
    flow.draw();
    attention.draw(now.found);
    ringPanel.hidden = !cluster; // not every user may see it
    if (cluster) replace(ring, ringPicture(cluster), h("div", {},
      facts([
        ["State", pill(cluster.status === "ACTIVE" ? "good" : "warn", cluster.status)],
        ["Position", count(cluster.position)],
        ["Members", `${cluster.size} of ${cluster.members.length} here`],
        ["Alarms", cluster.alarms?.length ? link(count(cluster.alarms.length), "health") : "none"],
      ])));
    replace(about, facts([
      ["Product", `${found.product_name ?? ""} ${found.product_version ?? ""}`.trim()],
      ["Answers as", found.rabbitmq_version ? `RabbitMQ ${found.rabbitmq_version}` : "–"],
      ["This member", found.node],
      found.uptime && ["Up for", duration(found.uptime)],
      ["Listens", (found.listeners ?? []).map((one) => `${one.protocol} ${one.ip_address}:${one.port}`).join(", ") || "–"],
    ]));
  }

  return { title: "Overview", live, update: async () => live(), node: h("div", { class: "grid" },
    attention.node, h("div", { class: "wide" }, tiles),
    h("section", { class: "panel", "aria-label": "Messages in queues" }, depth.figure),
    h("section", { class: "panel", "aria-label": "Message rates" }, flow.figure),
    ringPanel, panel("This broker", about)) };
}
