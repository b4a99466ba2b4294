"""The way of a message over federation links, as recorded in its header `x-received-from`."""

from __future__ import annotations

from collections.abc import Sequence

from broker.machine.requests.exchange_types import CLUSTER_NAME, RECEIVED_FROM, VHOST, has_been_at
from broker.machine.requests.properties import Entry, decode_value, encode_value, entry, items_of
from broker.shovels.amqp_uri import bare
from broker.shovels.definition import Shovel, Table
from broker.shovels.upstreams import EXCHANGE


class Way:
    """Adds the upstream to the header, and detects loops."""

    def __init__(self, shovel: Shovel, cluster: str, vhost: str) -> None:
        """`cluster` and `vhost` are the upstream's. Of several URIs the first is recorded: like the
        message it must be the same in each attempt."""
        assert shovel.link is not None
        self._link, self._vhost = shovel.link, shovel.vhost
        self.step: Table = {
            "uri": bare(shovel.source_uris[0]), self._link.kind: self._link.resource,
            CLUSTER_NAME: cluster, VHOST: vhost,
        }  # fmt: skip
        self._item = encode_value(self.step)
        self._alone = _header([self._item])

    def with_step(self, entries: Sequence[Entry]) -> list[Entry] | None:
        """Return the headers of a message from there; None: it goes no further.

        A filtering exchange at the upstream lets no such message through; another broker's exchange
        may. Queues give messages to whoever asks for them, so none is turned away: it would be
        lost.
        """
        before = next((value for name, _, value in entries if name == RECEIVED_FROM), b"")
        if not before:
            return [*entries, self._alone]
        items = items_of(before)
        if self._link.kind == EXCHANGE and items:
            way = decode_value(before)
            assert isinstance(way, tuple)
            if len(items) >= self._link.max_hops or has_been_at(
                way, self._link.cluster, self._vhost
            ):
                return None
        if self._item not in items:
            items.insert(0, self._item)
        return [*(one for one in entries if one[0] != RECEIVED_FROM), _header(items)]


def _header(items: Sequence[bytes]) -> Entry:
    joined = b"".join(items)
    return entry(RECEIVED_FROM, b"A" + len(joined).to_bytes(4, "big") + joined)
