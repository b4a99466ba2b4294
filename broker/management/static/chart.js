// Line charts of what was sampled: by this page while it is open, or by the member.

import { h, short, svg } from "./dom.js";

const WIDTH = 560, HEIGHT = 170, LEFT = 58, RIGHT = 8, TOP = 10, BOTTOM = 20;
const SAMPLES = 150;

export class Series {
  constructor() { this.samples = []; }

  add(values) {
    this.samples.push({ at: Date.now(), ...values });
    if (this.samples.length > SAMPLES) this.samples.shift();
  }
}

// The last minute of a member's samples, newest first as it gives them: `levels`, or how fast they `grow` a second.
// `keys`: the names in `details` of what is drawn, by the line's key.
export const LAST_MINUTE = Object.fromEntries(["lengths", "msg_rates"].flatMap((one) => [[`${one}_age`, 60], [`${one}_incr`, 2]]));

export function levels(details, keys) {
  const columns = Object.entries(keys).map(([key, name]) => [key, details?.[`${name}_details`]?.samples ?? []]);
  return columns[0][1].map(({ timestamp }, place) => ({
    at: timestamp, ...Object.fromEntries(columns.map(([key, samples]) => [key, samples[place]?.sample])) })).reverse();
}

export function growth(details, keys) {
  return levels(details, keys).flatMap((one, place, all) => {
    const before = all[place - 1];
    if (!before) return [];
    const aSecond = (key) => Math.max(0, one[key] - before[key]) * 1000 / (one.at - before.at);
    return [{ at: one.at, ...Object.fromEntries(Object.keys(keys).map((key) => [key, aSecond(key)])) }];
  });
}

// The smallest round number at or above `value`: 1, 2 or 5 times a power of ten.
export function ceiling(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((round) => round >= value);
}

// `lines`: [[key, name]], at most four; each is told apart by colour and by its stroke.
export function chart(title, unit, lines, series) {
  const figure = h("figure", { class: "chart" });
  const draw = () => {
    const samples = series.samples;
    const last = samples.at(-1) ?? {};
    const value = (sample, key) => (Number.isFinite(sample[key]) ? sample[key] : 0);
    const top = ceiling(Math.max(0, ...samples.flatMap((sample) => lines.map(([key]) => value(sample, key)))));
    const end = last.at ?? Date.now(), span = Math.max(60000, end - (samples[0]?.at ?? end));
    const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * (1 - (end - at) / span);
    const y = (amount) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - amount / top);
    const said = lines.map(([key, name]) => `${name} ${short(value(last, key))}${unit}`).join(", ");
    figure.replaceChildren(
      h("figcaption", {}, h("strong", {}, title), h("span", { class: "legend" }, lines.map(([key, name], index) =>
        h("span", { class: `key line-${index}` },
          svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 22, y1: 4, y2: 4 })),
          `${name} `, h("b", {}, `${short(value(last, key))}${unit}`))))),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, now: ${said}` },
        [0, 0.5, 1].map((part) => [
          svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * part), y2: y(top * part) }),
          svg("text", { class: "tick end", x: LEFT - 6, y: y(top * part) + 4 }, short(top * part))]),
        svg("text", { class: "tick", x: LEFT, y: HEIGHT - 4 }, `${Math.round(span / 1000)} s ago`),
        svg("text", { class: "tick end", x: WIDTH - RIGHT, y: HEIGHT - 4 }, "now"),
        lines.map(([key], index) => svg("polyline", {
          class: `line-${index}`,
          points: samples.map((sample) => `${x(sample.at).toFixed(1)},${y(value(sample, key)).toFixed(1)}`).join(" "),
        }))));
  };
  draw();
  return { figure, draw };
}
