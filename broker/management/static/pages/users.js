// Users, their tags and what they may do in each virtual host.

import { h, panel } from "../dom.js";
import { get, path, put, remove } from "../api.js";
import { field, fold, form } from "../forms.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";
import { vhostField } from "./vhost_field.js";

const tags = (given) => (Array.isArray(given) ? given.join(", ") : given ?? "");

export function users() {
  const list = table({
    label: "Users", id: (one) => one.name, source: () => get(path("users")),
    columns: [
      { name: "Name", key: "name", cell: (one) => one.name }, { name: "Tags", cell: (one) => tags(one.tags) || "none" },
      { name: "Password", cell: (one) => (one.password_hash ? "set" : "none, cannot log in by password") },
      { name: "Actions", cell: (one) => dangerous("Delete", `Delete user ${one.name}? Its connections are closed.`,
        () => attempt(() => remove(path("users", one.name)), `User ${one.name} is deleted.`).then(update)) },
    ],
  });
  const allowed = table({
    label: "Permissions", id: (one) => `${one.user} ${one.vhost}`, source: () => get(path("permissions")), empty: "Nobody may do anything.",
    columns: [
      { name: "User", key: "user", cell: (one) => one.user }, { name: "Virtual host", key: "vhost", cell: (one) => one.vhost },
      ...["configure", "write", "read"].map((kind) => ({ name: kind[0].toUpperCase() + kind.slice(1), cell: (one) => h("code", {}, one[kind] || "(nothing)") })),
      { name: "Actions", cell: (one) => dangerous("Clear", `Take all rights in ${one.vhost} from ${one.user}?`,
        () => attempt(() => remove(path("permissions", one.vhost, one.user)), "The permission is cleared.").then(update)) },
    ],
  });
  const update = () => Promise.all([list.update(), allowed.update()]);
  const add = fold("Add or change a user", form("Add or change a user", "Save", [
    field("Name", "name", { required: true }), field("Password", "password", { type: "password", autocomplete: "new-password", required: true }),
    field("Tags", "tags", { hint: "administrator, monitoring, policymaker, management; several with commas" }),
  ], async (values) => {
    await put(path("users", values.name), { password: values.password, tags: values.tags.replaceAll(" ", "") });
    await update();
  }, { done: (values) => `User ${values.name} is saved.` }));
  const allow = fold("Set a permission", form("Set a permission", "Set", [
    field("User", "user", { required: true }), vhostField(),
    ["configure", "write", "read"].map((kind) => field(kind[0].toUpperCase() + kind.slice(1), kind, { value: ".*", hint: "regular expression of names" })),
  ], async (values) => {
    await put(path("permissions", values.vhost, values.user), { configure: values.configure, write: values.write, read: values.read });
    await update();
  }, { done: "The permission is set." }));
  return { title: "Users", update, node: h("div", {}, list.node, add, panel("Permissions", allowed.node), allow) };
}
