// Virtual hosts: namespaces with queues, exchanges and permissions of their own.

import { count, h } from "../dom.js";
import { get, path, put, remove } from "../api.js";
import { field, fold, form } from "../forms.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";

export function vhosts() {
  const list = table({
    label: "Virtual hosts", id: (one) => one.name, source: () => get(path("vhosts")),
    columns: [
      { name: "Name", key: "name", cell: (one) => one.name }, { name: "Description", cell: (one) => one.description ?? "" },
      { name: "Default queue type", cell: (one) => one.default_queue_type ?? "" },
      { name: "Messages", key: "messages", right: true, cell: (one) => count(one.messages ?? 0) },
      { name: "Ready", key: "messages_ready", right: true, cell: (one) => count(one.messages_ready ?? 0) },
      { name: "Unacked", key: "messages_unacknowledged", right: true, cell: (one) => count(one.messages_unacknowledged ?? 0) },
      { name: "Actions", cell: (one) => dangerous("Delete", `Delete virtual host ${one.name} with all its queues, exchanges and messages?`,
        () => attempt(() => remove(path("vhosts", one.name)), `Virtual host ${one.name} is deleted.`).then(list.update)) },
    ],
  });
  const add = fold("Add a virtual host", form("Add a virtual host", "Add", [
    field("Name", "name", { required: true }), field("Description", "description"),
    field("Default queue type", "default_queue_type", {
      options: ["classic", "quorum", "stream"], hint: "Of durable queues whose client asks for no type.",
    }),
  ], async ({ name, ...values }) => {
    await put(path("vhosts", name), Object.fromEntries(Object.entries(values).filter(([, value]) => value)));
    await list.update();
  }, { done: (values) => `Virtual host ${values.name} is there.` }));
  return { title: "Virtual hosts", update: list.update, node: h("div", {}, list.node, add) };
}
