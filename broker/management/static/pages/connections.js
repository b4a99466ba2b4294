// Clients' connections at all members; one can be closed.

import { bytes, count, h, pill } from "../dom.js";
import { path, remove } from "../api.js";
import { attempt, dangerous } from "../notices.js";
import { table } from "../table.js";

export function connections() {
  const close = (one) => attempt(() => remove(path("connections", one.name)), "The connection is closed.").then(list.update);
  const list = table({
    label: "Connections", source: path("connections"), id: (one) => one.name, empty: "No client is connected.",
    columns: [
      { name: "Name", key: "name", cell: (one) => [one.name, one.client_properties?.connection_name && h("small", {}, ` ${one.client_properties.connection_name}`)] },
      { name: "Member", roomy: true, key: "node", cell: (one) => one.node ?? "" },
      { name: "User", key: "user", cell: (one) => one.user ?? "" },
      { name: "Virtual host", roomy: true, key: "vhost", cell: (one) => one.vhost ?? "" },
      { name: "State", key: "state", cell: (one) => pill(one.state === "running" ? "good" : "warn", one.state ?? "running") },
      { name: "TLS", roomy: true, cell: (one) => (one.ssl ? one.ssl_protocol ?? "yes" : "no") },
      { name: "Client", roomy: true, cell: (one) => [one.client_properties?.product, one.client_properties?.version].filter(Boolean).join(" ") },
      { name: "Channels", key: "channels", right: true, cell: (one) => count(one.channels ?? 0) },
      { name: "Received", roomy: true, right: true, key: "recv_oct", cell: (one) => bytes(one.recv_oct) },
      { name: "Sent", roomy: true, right: true, key: "send_oct", cell: (one) => bytes(one.send_oct) },
      { name: "Actions", cell: (one) => dangerous("Close", `Close the connection ${one.name} of user ${one.user}?`, () => close(one)) },
    ],
  });
  return { title: "Connections", update: list.update, node: list.node };
}
