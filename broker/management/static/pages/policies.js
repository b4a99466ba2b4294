// Policies: what holds for all queues and exchanges whose names match; and those of operators, which cap them.

import { count, h, panel } from "../dom.js";
import { get, path, put, remove } from "../api.js";
import { field, fold, form, json } from "../forms.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";
import { vhostField } from "./vhost_field.js";

const list = (label, kind, update) => table({
  label, id: (one) => `${one.vhost}/${one.name}`, source: () => get(path(kind)), empty: "None is set.",
  columns: [
    { name: "Name", key: "name", cell: (one) => one.name }, { name: "Virtual host", key: "vhost", cell: (one) => one.vhost },
    { name: "Pattern", cell: (one) => h("code", {}, one.pattern) }, { name: "Applies to", key: "apply-to", cell: (one) => one["apply-to"] },
    { name: "Definition", cell: (one) => h("code", {}, JSON.stringify(one.definition)) },
    { name: "Priority", key: "priority", right: true, cell: (one) => count(one.priority) },
    { name: "Actions", cell: (one) => dangerous("Delete", `Delete policy ${one.name}?`,
      () => attempt(() => remove(path(kind, one.vhost, one.name)), `Policy ${one.name} is deleted.`).then(update)) },
  ],
});

const set = (title, kind, update) => fold(title, form(title, "Set", [
  vhostField(), field("Name", "name", { required: true }), field("Pattern", "pattern", { required: true, hint: "regular expression of names, for example ^orders\\." }),
  field("Applies to", "apply-to", { options: kind === "policies" ? ["all", "queues", "exchanges"] : ["queues"] }),
  field("Definition", "definition", { type: "area", required: true, hint: 'JSON, for example {"max-length": 100000, "overflow": "reject-publish"}' }),
  field("Priority", "priority", { type: "number", value: 0 }),
], async (values) => {
  await put(path(kind, values.vhost, values.name), {
    pattern: values.pattern, definition: json(values.definition), priority: Number(values.priority), "apply-to": values["apply-to"] });
  await update();
}, { done: (values) => `Policy ${values.name} is set.` }));

export function policies() {
  const update = () => Promise.all([own.update(), operators.update()]);
  const own = list("Policies", "policies", update), operators = list("Operator policies", "operator-policies", update);
  return { title: "Policies", update, node: h("div", {}, own.node, set("Set a policy", "policies", update),
    panel("Operator policies", operators.node), set("Set an operator policy", "operator-policies", update)) };
}
