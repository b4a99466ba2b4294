// Forms: every field has a label; what is sent is read from the fields by name.

import { h, newId } from "./dom.js";
import { attempt } from "./notices.js";

export function field(label, name, { type = "text", options, hint, ...more } = {}) {
  const id = newId("field");
  const hinted = hint ? { "aria-describedby": `${id}-hint` } : {};
  let input;
  if (options) {
    input = h("select", { id, name, ...hinted, ...more }, options.map((one) => {
      const [value, text] = Array.isArray(one) ? one : [one, one];
      return h("option", { value, selected: value === more.value }, text);
    }));
  } else if (type === "area") input = h("textarea", { id, name, rows: 3, spellcheck: "false", ...hinted, ...more });
  else input = h("input", { id, name, type, autocomplete: "off", spellcheck: "false", ...hinted, ...more });
  return h("div", { class: type === "checkbox" ? "field check" : "field" },
    h("label", { for: id }, label), input, hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}

// `act(values)` is called with the fields by name; the form is emptied when it succeeds.
export function form(label, verb, fields, act, { done, keep = false } = {}) {
  const button = h("button", { class: "primary" }, verb);
  const element = h("form", { "aria-label": label, onsubmit: async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(element));
    button.disabled = true;
    const ok = await attempt(() => act(values), typeof done === "function" ? done(values) : done);
    button.disabled = false;
    if (ok && !keep) element.reset();
  } }, fields, h("div", { class: "actions" }, button));
  return element;
}

export const fold = (title, ...children) => h("details", { class: "panel fold" }, h("summary", {}, title), ...children);

// Arguments and definitions are typed as JSON; an empty field is an empty table.
export function json(text) {
  if (!text.trim()) return {};
  let value;
  try { value = JSON.parse(text); } catch { throw new Error(`this is not JSON: ${text}`); }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("give a JSON object, for example {\"max-length\": 1000}");
  return value;
}
