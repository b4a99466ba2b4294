"""A member's place on the network: its ring socket, and how it finds the others."""

from __future__ import annotations

from collections.abc import Callable

from broker.options import BrokerOptions
from vsync.config import RingConfig
from vsync.discovery import Beacon, Discovery, StaticPeers
from vsync.transport import ZmqTransport
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


def ring_transport(options: BrokerOptions) -> ZmqTransport:
    """Bind the ring's socket; a stand-alone broker's is one that nobody knows."""
    bind = str(options.cluster_bind) if options.clustered else "127.0.0.1:0"
    return ZmqTransport(bind, RingConfig().frame_bytes_max * 3)
