// Open channels at all members.

import { count, rate } from "../dom.js";
import { path } from "../api.js";
import { table } from "../table.js";

export function channels() {
  const list = table({
    label: "Channels", source: path("channels"), id: (one) => one.name, empty: "No channel is open.",
    columns: [
      { name: "Name", key: "name", cell: (one) => one.name },
      { name: "Member", roomy: true, key: "node", cell: (one) => one.node ?? "" },
      { name: "User", roomy: true, key: "user", cell: (one) => one.user ?? "" },
      { name: "Virtual host", roomy: true, key: "vhost", cell: (one) => one.vhost ?? "" },
      { name: "Mode", roomy: true, cell: (one) => (one.transactional ? "transactions" : one.confirm ? "confirms" : "") },
      { name: "Prefetch", key: "prefetch_count", right: true, cell: (one) => count(one.prefetch_count ?? 0) },
      { name: "Unacked", key: "messages_unacknowledged", right: true, cell: (one) => count(one.messages_unacknowledged ?? 0) },
      { name: "Unconfirmed", roomy: true, key: "messages_unconfirmed", right: true, cell: (one) => count(one.messages_unconfirmed ?? 0) },
      { name: "Published", right: true, cell: (one) => rate(one.message_stats?.publish_details) },
      { name: "Delivered", right: true, cell: (one) => rate(one.message_stats?.deliver_get_details) },
    ],
  });
  return { title: "Channels", update: list.update, node: list.node };
}
