"""How a member finds the others: by the operator's list, else by beacons, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from broker.options import BrokerOptions
from vsync.discovery import Beacon, Discovery, StaticPeers
from vsync.types import Member


def discovery_for(
    options: BrokerOptions, me: Member, warn: Callable[[str], None]
) -> Discovery | None:
    """Return what looks for the other members; None for a stand-alone broker."""
    if not options.clustered:
        return None
    if options.cluster_nodes:
        return StaticPeers(str(address) for address in options.cluster_nodes)
    interface = me.address.rsplit(":", 1)[0]
    return Beacon(options.cluster_name, me.name, me.address, warn, interface=interface)
