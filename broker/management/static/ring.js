// The ring and its quorum as a picture: who holds the token in turn, who is joining, who is away.

import { svg } from "./dom.js";

const SIZE = 340, MIDDLE = SIZE / 2, RADIUS = 104, NODE = 33;
export const KINDS = { ACTIVE: "good", JOINING: "warn", DOWN: "off" };

// Names are addresses as a rule, and those of one cluster differ at their ends.
const tail = (name) => (name.length > 20 ? `…${name.slice(-19)}` : name);

export function ringPicture(cluster) {
  const members = cluster.members ?? [];
  const quorum = cluster.quorum ?? {};
  const place = (index) => {
    const angle = (2 * Math.PI * index) / Math.max(1, members.length) - Math.PI / 2;
    return [MIDDLE + RADIUS * Math.cos(angle), MIDDLE + RADIUS * Math.sin(angle), angle];
  };
  const votes = quorum.expected_votes ? `${quorum.total_votes} of ${quorum.expected_votes} votes` : "every member may act";
  const said = members.map((one) => `${one.id} ${one.state.toLowerCase()}${one.voter ? ", votes" : ""}`).join("; ");
  const state = quorum.quorate ? "quorate" : "not quorate";
  return svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "ring", role: "img", "aria-label": `Ring: ${said}. ${votes}, ${state}.` },
    svg("circle", { class: "circle", cx: MIDDLE, cy: MIDDLE, r: RADIUS }),
    members.length > 1 && members.map((_, index) => {
      const angle = place(index + 0.5)[2];
      const [x, y] = [MIDDLE + RADIUS * Math.cos(angle), MIDDLE + RADIUS * Math.sin(angle)];
      return svg("path", { class: "arrow", d: "M-5,-5 L5,0 L-5,5", transform: `translate(${x} ${y}) rotate(${(angle * 180) / Math.PI + 90})` });
    }),
    svg("text", { class: `middle ${quorum.quorate ? "good" : "bad"}`, x: MIDDLE, y: MIDDLE - 4 }, state),
    svg("text", { class: "under", x: MIDDLE, y: MIDDLE + 16 }, votes),
    svg("text", { class: "under", x: MIDDLE, y: MIDDLE + 34 }, `epoch ${cluster.epoch ?? "–"}`),
    members.map((member, index) => {
      const [x, y] = place(index);
      const role = member.arbitrator ? "arbitrator" : member.voter ? `${member.votes ?? 1} vote${member.votes > 1 ? "s" : ""}` : "no vote";
      return svg("g", { class: `member ${KINDS[member.state] ?? "warn"}${member.local ? " local" : ""}`, transform: `translate(${x} ${y})` },
        svg("circle", { r: NODE }),
        svg("text", { class: "role", y: -3 }, member.state),
        svg("text", { class: "role", y: 11 }, role),
        svg("text", { class: "name", y: NODE + 16 }, tail(member.id)));
    }));
}
