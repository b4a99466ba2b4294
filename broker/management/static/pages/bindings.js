// The bindings of a queue or an exchange: listed, added, removed.

import { h, link } from "../dom.js";
import { path, post, remove } from "../api.js";
import { field, fold, form, json } from "../forms.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";

const LETTER = { queue: "q", exchange: "e" };

// `ends`: {to} of a queue or exchange whose sources are listed, or {from} of an exchange.
export function bindingTable(load, ends) {
  const vhost = (ends.to ?? ends.from).vhost;
  const unbind = (one) => attempt(() => remove(path("bindings", vhost, "e", one.source, LETTER[one.destination_type], one.destination, one.properties_key)), "The binding is removed.").then(list.update);
  const list = table({
    label: "Bindings", filter: false, id: (one) => `${one.source}>${one.destination_type}>${one.destination}>${one.properties_key}`, empty: "No bindings.",
    source: async () => load(),
    columns: [
      ends.to ? { name: "From", key: "source", cell: (one) => (one.source ? link(one.source, "exchange", vhost, one.source) : "(default exchange)") }
        : { name: "To", key: "destination", cell: (one) => [link(one.destination, one.destination_type, vhost, one.destination), h("small", {}, ` ${one.destination_type}`)] },
      { name: "Routing key", key: "routing_key", cell: (one) => one.routing_key },
      { name: "Arguments", cell: (one) => (Object.keys(one.arguments ?? {}).length ? h("code", {}, JSON.stringify(one.arguments)) : "") },
      { name: "Actions", cell: (one) => one.source && dangerous("Unbind", `Remove the binding of ${one.destination} to ${one.source} by "${one.routing_key}"?`, () => unbind(one)) },
    ],
  });
  const other = ends.to
    ? [field("From exchange", "source", { required: true })]
    : [field("To", "type", { options: [["q", "queue"], ["e", "exchange"]] }), field("Name", "destination", { required: true })];
  const add = fold("Add a binding", form("Add a binding", "Bind", [
    other, field("Routing key", "routing_key"), field("Arguments", "arguments", { type: "area", hint: "JSON" }),
  ], async (values) => {
    const source = ends.from?.name ?? values.source, type = ends.to?.type ?? values.type, destination = ends.to?.name ?? values.destination;
    await post(path("bindings", vhost, "e", source, type, destination), { routing_key: values.routing_key, arguments: json(values.arguments) });
    await list.update();
  }, { done: "The binding is there." }));
  return { node: h("div", {}, list.node, add), update: list.update };
}
