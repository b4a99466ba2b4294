// Elements of a page.  Text is set as text only: a name that a client chose is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

// Characters that show nothing or turn the text around them, as a name may have them, are shown by number.
const UNSEEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const visible = (one) => (typeof one === "string" ? one.replace(UNSEEN, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`) : one);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((one) => one !== undefined && one !== null && one !== false).map(visible));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

let ids = 0;
export const newId = (stem) => `${stem}-${++ids}`;

const counts = new Intl.NumberFormat("en");
export const count = (value) => (Number.isFinite(value) ? counts.format(value) : "–");

export function short(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return scaled.toFixed(scaled < 100 ? 1 : 0) + unit;
    }
  }
  return value >= 100 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1);
}

export const rate = (details) => (details ? `${short(details.rate)}/s` : "–");

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function duration(milliseconds) {
  if (!Number.isFinite(milliseconds)) return "–";
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const when = (milliseconds) => (milliseconds ? new Date(milliseconds).toLocaleString() : "–");

const MARKS = { good: "●", warn: "▲", bad: "■", off: "○" };

// A state is told by word and shape, not by colour alone.
export const pill = (kind, text) =>
  h("span", { class: `pill ${kind}` }, h("span", { "aria-hidden": "true" }, MARKS[kind] ?? ""), text);

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))));

export const panel = (title, ...children) => {
  const id = newId("panel");
  return h("section", { class: "panel", "aria-labelledby": id }, h("h2", { id }, title), ...children);
};

export const route = (page, ...names) => `#/${[page, ...names.map(encodeURIComponent)].join("/")}`;
export const link = (text, page, ...names) => h("a", { href: route(page, ...names) }, text);
