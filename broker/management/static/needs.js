// What needs looking after, as the broker finds it (`GET /api/qpid/findings`): what it is, what follows, what to do.

import { h, panel, pill, replace, when } from "./dom.js";

const KINDS = { critical: "bad", warning: "warn", notice: "off" };

// For the heading: the gravest, and of how many objects of that kind it is true; nothing where there are only notices.
export function gravest(found) {
  const [first] = found?.findings ?? [];
  if (!first || first.severity === "notice") return null;
  const of = found.findings.filter((one) => one.name === first.name).reduce((sum, one) => sum + one.count, 0);
  return [KINDS[first.severity] ?? "warn", first.name.replaceAll("-", " ") + (of > 1 ? ` (${of})` : "")];
}

// Hidden where there is nothing; `draw` is to be called as news comes in.
export function needsPanel() {
  const list = h("ul", { class: "alarms needs" }), node = h("div", { class: "wide", hidden: true }, panel("Needs looking after", list));
  let before = "";
  return { node, draw(found) {
    const listed = found?.findings ?? [], unknown = found?.unknown ?? [], said = JSON.stringify([listed, unknown]);
    if (said === before) return; // a text that is being read or copied stays as it is
    before = said;
    node.hidden = !listed.length && !unknown.length;
    const advice = (one) => `${one?.follows} ${one?.do} `; // the same about several members is given once, after the last
    replace(list, listed.map((one, place) => h("li", {}, pill(KINDS[one.severity] ?? "warn", one.severity),
      h("strong", {}, one.what, one.since_ms ? `, since ${when(one.since_ms)}` : ""),
      advice(one) !== advice(listed[place + 1]) && h("p", {}, advice(one), h("small", {}, one.see)))),
      unknown.map((text) => h("li", {}, pill("off", "not known"), h("span", {}, text))));
  } };
}
