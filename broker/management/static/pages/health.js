// Alarms of all members, and the health checks as monitoring asks them.

import { h, panel, pill, replace } from "../dom.js";
import { get, path } from "../api.js";
import { now } from "../live.js";

const CHECKS = [
  ["alarms", "No member has an alarm"], ["local-alarms", "This member has no alarm"], ["virtual-hosts", "All virtual hosts are there"],
  ["node-is-quorum-critical", "The cluster can lose this member"],
];

export function health() {
  const alarms = h("ul", { class: "alarms" }), checks = h("ul", { class: "alarms" });

  async function update() {
    live();
    const answers = await Promise.all(CHECKS.map(async ([name, title]) => {
      try {
        await get(path("health", "checks", name));
        return h("li", {}, pill("good", "passed"), ` ${title}`);
      } catch (problem) {
        return h("li", {}, problem.status === 503 ? pill("bad", "failed") : pill("off", "not asked"), ` ${title}: ${problem.message}`);
      }
    }));
    replace(checks, answers);
  }

  function live() {
    if (!now.cluster) return;
    const found = [...(now.cluster.alarms ?? []), ...(now.cluster.status === "ACTIVE" ? [] : [`${now.cluster.status}: ${now.cluster.reason}`])];
    replace(alarms, found.length ? found.map((one) => h("li", {}, pill("warn", "alarm"), ` ${one}`)) : h("li", {}, pill("good", "none"), " No alarm is set at any member."));
  }

  return { title: "Alarms", update, live, node: h("div", { class: "grid" }, panel("Alarms", alarms), panel("Health checks", checks)) };
}
