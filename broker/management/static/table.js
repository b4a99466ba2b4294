// A table that is filtered, sorted, paged and refreshed; large lists are paged by the member.

import { count, h, newId, replace } from "./dom.js";
import { get, query } from "./api.js";

const PAGE = 50;

const look = (column) => [column.right && "right", column.roomy && "roomy"].filter(Boolean).join(" ") || undefined;

// `columns`: [{name, key (sortable), right, roomy (left out on a phone), cell(item)}].  `source` is an address that pages, or a function that
// returns the whole list.  `id(item)` names a row, so that the keyboard's place outlives a refresh.
export function table({ label, columns, source, id, filter = true, empty = "Nothing here." }) {
  let page = 1, name = "", regex = false, sort = "", reversed = false, asked = 0;
  const heads = h("tr"), body = h("tbody"), foot = h("div", { class: "pages" }), note = h("p", { class: "empty", hidden: true }, empty);
  const search = newId("filter");

  const sorted = (items) => {
    const by = columns.find((column) => column.key === sort);
    const at = (item) => (by.key.split(".").reduce((found, part) => found?.[part], item) ?? "");
    const shown = name ? items.filter((item) => id(item).toLowerCase().includes(name.toLowerCase())) : items;
    if (!by) return shown;
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    return [...shown].sort((a, b) => order(at(a), at(b)) * (reversed ? -1 : 1));
  };

  async function load() {
    if (typeof source === "function") {
      const all = await source(), shown = sorted(all), pages = Math.max(1, Math.ceil(shown.length / PAGE));
      page = Math.min(page, pages);
      return { items: shown.slice((page - 1) * PAGE, page * PAGE), page_count: pages, filtered_count: shown.length, total_count: all.length };
    }
    const wanted = { page, page_size: PAGE, name, use_regex: regex, pagination: true, ...(sort ? { sort, sort_reverse: reversed } : {}) };
    const found = await get(query(source, wanted));
    if (Array.isArray(found)) return { items: found, page_count: 1, filtered_count: found.length, total_count: found.length };
    if (page > 1 && page > found.page_count) { page = Math.max(1, found.page_count); return load(); }
    return found;
  }

  async function update() {
    const question = ++asked;
    const found = await load();
    if (question !== asked) return;
    const held = body.contains(document.activeElement) ? document.activeElement : null;
    const row = held?.closest("tr"), nth = row ? [...row.querySelectorAll("a,button")].indexOf(held) : -1;
    replace(body, found.items.map((item) => h("tr", { "data-id": id(item) },
      columns.map((column, index) => h(index ? "td" : "th", { class: look(column), scope: index ? undefined : "row" }, column.cell(item))))));
    if (held) [...body.rows].find((one) => one.dataset.id === row.dataset.id)?.querySelectorAll("a,button")[nth]?.focus();
    note.hidden = found.items.length > 0;
    counted.textContent = found.filtered_count === found.total_count ? `${count(found.total_count)} in all` : `${count(found.filtered_count)} of ${count(found.total_count)}`;
    at.textContent = `page ${page} of ${Math.max(1, found.page_count)}`;
    before.disabled = page <= 1;
    after.disabled = page >= found.page_count;
    turn.hidden = found.page_count <= 1;
  }

  const change = () => { drawHeads(); update().catch((problem) => { note.hidden = false; note.textContent = problem.message; }); };
  const before = h("button", { type: "button", onclick: () => { page -= 1; change(); } }, "Previous");
  const after = h("button", { type: "button", onclick: () => { page += 1; change(); } }, "Next");
  const at = h("span"), counted = h("span", { class: "counted" }), turn = h("span", { class: "turn" }, before, at, after);
  foot.append(counted, turn);

  function drawHeads() {
    const held = heads.contains(document.activeElement) ? [...heads.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    replace(heads, columns.map((column) => {
      const direction = column.key && column.key === sort ? (reversed ? "descending" : "ascending") : undefined;
      const mark = direction ? (reversed ? " ↓" : " ↑") : "";
      return h("th", { scope: "col", class: look(column), "aria-sort": direction },
        column.key ? h("button", { type: "button", class: "sort", onclick: () => {
          reversed = sort === column.key ? !reversed : Boolean(column.right);
          sort = column.key;
          change();
        } }, column.name, mark) : column.name);
    }));
    if (held >= 0) heads.querySelectorAll("button")[held]?.focus();
  }

  drawHeads();
  const filters = filter && h("div", { class: "filter" },
    h("label", { for: search }, `Filter ${label.toLowerCase()} by name`),
    h("input", { id: search, type: "search", autocomplete: "off", spellcheck: "false", oninput: (event) => { name = event.target.value; page = 1; change(); } }),
    typeof source === "string" && h("label", { class: "inline" },
      h("input", { type: "checkbox", onchange: (event) => { regex = event.target.checked; change(); } }), "regular expression"));
  const node = h("div", { class: "list" }, filters,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, heads), body)), note, foot);
  return { node, update };
}
