// The ring and its quorum as a picture: who holds the token in turn, who is joining, who is away.

import { svg } from "./dom.js";

const FEW = 5; // more have their names outside of the ring, where there is room
export const KINDS = { ACTIVE: "good", JOINING: "warn", DOWN: "bad" };

// Names are addresses as a rule, and those of one cluster differ at their ends.
const tail = (name) => (name.length > 20 ? `…${name.slice(-19)}` : name);

export function ringPicture(cluster) {
  const members = cluster.members ?? [];
  const quorum = cluster.quorum ?? {};
  const many = members.length > FEW;
  const radius = many ? Math.max(120, 10 * members.length) : 104, node = many ? 27 : 33;
  const width = many ? 2 * (radius + node + 150) : 340, height = many ? 2 * (radius + node + 24) : 340;
  const middle = height / 2, center = width / 2;
  const place = (index) => {
    const angle = (2 * Math.PI * index) / Math.max(1, members.length) - Math.PI / 2;
    return [center + radius * Math.cos(angle), middle + radius * Math.sin(angle), angle];
  };
  const named = (angle) => {
    if (!many) return { class: "name", y: node + 16 };
    const aside = Math.cos(angle), out = node + 7;
    if (Math.abs(aside) < 0.1) return { class: "name", y: Math.sin(angle) * (node + 12) + 4 };
    return { class: `name ${aside > 0 ? "from" : "to"}`, x: Math.sign(aside) * out, y: Math.sin(angle) * 14 + 4 };
  };
  const votes = quorum.expected_votes ? `${quorum.total_votes} of ${quorum.expected_votes} votes` : "every member may act";
  const said = members.map((one) => `${one.id} ${one.state.toLowerCase()}${one.voter ? ", votes" : ""}`).join("; ");
  const state = quorum.quorate ? "quorate" : "not quorate";
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: many ? "ring many" : "ring", role: "img", "aria-label": `Ring: ${said}. ${votes}, ${state}.` },
    svg("circle", { class: "circle", cx: center, cy: middle, r: radius }),
    members.length > 1 && members.map((_, index) => {
      const [x, y, angle] = place(index + 0.5);
      return svg("path", { class: "arrow", d: "M-5,-5 L5,0 L-5,5", transform: `translate(${x} ${y}) rotate(${(angle * 180) / Math.PI + 90})` });
    }),
    svg("text", { class: `middle ${quorum.quorate ? "good" : "bad"}`, x: center, y: middle - 4 }, state),
    svg("text", { class: "under", x: center, y: middle + 16 }, votes),
    svg("text", { class: "under", x: center, y: middle + 34 }, `epoch ${cluster.epoch ?? "–"}`),
    members.map((member, index) => {
      const [x, y, angle] = place(index);
      const role = member.arbitrator ? "arbitrator" : member.voter ? `${member.votes ?? 1} vote${member.votes > 1 ? "s" : ""}` : "no vote";
      return svg("g", { class: `member ${KINDS[member.state] ?? "warn"}${member.local ? " local" : ""}`, transform: `translate(${x} ${y})` },
        svg("circle", { r: node }),
        svg("text", { class: "role", y: -3 }, member.state),
        svg("text", { class: "role", y: 11 }, role),
        svg("text", named(angle), tail(member.id)));
    }));
}
