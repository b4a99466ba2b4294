"""The options of one broker, validated into one record.

Values arrive as text under their long option names, from the command line, the environment or an
option file; this module does not know which. Either every value is good and `broker_options`
returns a complete `BrokerOptions`, or it raises one `OptionError` that names the option at fault.
Nothing here touches the disk or the network: `broker.process.server.run` reports faults that only
they reveal.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from broker.options import quorum as quorum_options
from broker.options import security as security_options
from broker.options.access import AccessOptions, read_access_options
from broker.options.addresses import (
    WILDCARDS,
    Address,
    is_host,
    own_url,
    read_address,
    read_addresses,
    ring_address,
    ring_addresses,
    shown,
    url_addresses,
)
from broker.options.bounds import Bounds, read_bounds
from broker.options.client_ports import (
    PORT_MAX,
    ClientLimits,
    TlsOptions,
    read_client_limits,
    read_tls_options,
)
from broker.options.logs import LogOptions, read_log_options
from broker.options.management import ManagementOptions, read_management_options
from broker.options.modes import active_passive as ha_options
from broker.options.modes.active_passive import (
    ActivePassiveOptions,
    read_active_passive,
    ring_credentials,
)
from broker.options.modes.pair import NAMELESS, PairOptions, peer_text, read_pair
from broker.options.modes.shared_store import SharedStoreOptions, read_shared_store
from broker.options.quorum import read_quorum_options
from broker.options.retention import (
    BackupPolicy,
    MemberlogOptions,
    read_backup_options,
    read_memberlog_options,
)
from broker.options.security import (
    OPEN,
    SecurityOptions,
    is_ip,
    is_loopback,
    read_security_options,
)
from broker.options.table import DEFAULTS, settings_of
from broker.options.values import OptionError, number, yes
from vsync.quorum.voter_set import Terms
from vsync.types import record

CLUSTER_SIZE_MAX = 16
"""A token ring of more members spends its time rotating; Totem's authors stop near here too."""
CLUSTER_NAME_CHARACTERS_MAX = 128
SCRUB_RATE_MAX = 10_000
"""A message read again costs about two microseconds, on the thread that serves."""

_NO_PAIR = (
    "ha-cluster", "ha-promotion", "ha-brokers-url", "ha-public-url", "ha-replicate",
    "ha-backup-timeout", *ha_options.STANDS_FOR, "shared-store", "cluster-mcastaddr",
    "cluster-mcastport",
)  # fmt: skip
_RING_ONLY = (
    "cluster-size", "cluster-bind", "cluster-nodes", "cluster-mcastaddr", "cluster-mcastport",
)  # fmt: skip

SIZE_FORGOTTEN = (
    "it is not given, and --cluster-nodes names other members: say how many vote, the same number "
    "at all members (--cluster-size {0} if each of the {0} votes); by its default, 1, this one "
    "could make a cluster of its own"
)
DATA_DIR_FORGOTTEN = (
    "a member of a cluster needs one: it votes by what it has there, and would forget its votes "
    "with its process. For a cluster to throw away give --no-data-dir to all members"
)


Mode: TypeAlias = ActivePassiveOptions | PairOptions | SharedStoreOptions
"""A cluster's, a pair's (with a vote that is no machine's), or that of a shared store, which this
broker leads or waits for: its data directory is in there then."""


class OptionTexts(dict[str, str]):
    """Options as they were given, never shown in a log because some are secrets."""

    def __repr__(self) -> str:
        return f"<{len(self)} options>"


@record
class BrokerOptions:
    """The options of one broker. Built whole by `broker_options`, then only read."""

    cluster_name: str
    """Empty: a stand-alone broker, that is, a cluster of one."""
    cluster_size: int
    """The voter set formed at first start, and how many members that start waits for."""
    cluster_bind: Address
    """Where the ring's socket binds; port 0 = any free one (peers then find it by beacons)."""
    cluster_nodes: tuple[Address, ...]
    """Ring addresses of the members, own one allowed; empty: find them by multicast beacons."""
    beacon_group: str
    """The multicast group of the beacons, without --cluster-nodes; empty: made from the name."""
    beacon_port: int
    """Its port; 0: the usual one."""
    cluster_url: str
    """This broker's client address for members and tools: `amqp:tcp:HOST:PORT,...`."""
    port: int | None
    """Where clients and management tools connect; 0 = any free port, logged at start; None: they
    connect over TLS only."""
    tls: TlsOptions | None
    """Where clients connect over TLS, and how; None: nowhere."""
    clients: ClientLimits
    """The limits for clients."""
    interface: str
    """The address that the client listener binds."""
    data_dir: Path | None
    """Absolute.  None: a temporary one, gone with the process; a restart comes back empty."""
    trace: Path | None
    """Absolute.  Where the ring's trace goes from the start on; None: off until switched on."""
    log: LogOptions
    """How much is logged, where, and in which form."""
    watchdog_s: int
    """A process whose event loop is stuck for this many seconds is ended; 0: never."""
    scrub_rate: int
    """How many messages at rest are read again a second; 0: none, and nothing on disk either."""
    access: AccessOptions
    """How clients log in."""
    backups: BackupPolicy
    """Which stores that were set aside are kept."""
    management: ManagementOptions
    """Where the management API listens, if anywhere."""
    memberlog: MemberlogOptions
    """When a segment of the member log ends, and what becomes of it then."""
    bounds: Bounds
    """How far this member's clock and disk may be off before it may not join, or leaves."""
    requested: Terms
    """The terms requested for the voter set of a new cluster (`vsync.quorum.voter_set`)."""
    cman: bool
    """Whether this member stops at once when it loses the quorum, instead of waiting for it."""
    arbitrator: bool
    """Whether this process is the cluster's arbitrator: it votes, holds no data, has no clients."""
    mode: Mode | None
    """How only one of several brokers takes clients; None: all members do."""
    settings: tuple[tuple[str, str, bool], ...]
    """The settings compared with the other members' (`vsync.primary.settings`)."""
    security: SecurityOptions
    """How members prove to each other who they are."""
    text: OptionTexts
    """The text that the options were read from, defaults filled in."""
    cluster_bind_also: tuple[Address, ...] = ()
    """Addresses of the ring's socket on further networks; every frame goes over all of them."""

    @property
    def shared_store(self) -> SharedStoreOptions | None:
        """The store that this broker leads or waits for; None: the store is its own."""
        return self.mode if isinstance(self.mode, SharedStoreOptions) else None

    @property
    def clustered(self) -> bool:
        """Whether this broker looks for other members at all."""
        return bool(self.cluster_name) and self.shared_store is None

    @property
    def listen(self) -> Address | None:
        """Where clients connect without TLS, as configured."""
        return None if self.port is None else Address(self.interface, self.port)


def broker_options(given: Mapping[str, str]) -> BrokerOptions:
    """Validate `given` (long names without dashes to text) over the defaults; all or nothing."""
    derived = "cluster-nodes" not in given and bool(given.get("ha-brokers-url"))
    given = _with_peer(_with_ring(given))
    text = {name: given.get(name, default).strip() for name, default in DEFAULTS.items()}
    cluster_name = _cluster_name(text["cluster-name"])
    shared = _without_ring(text, cluster_name)
    interface = text["interface"].removeprefix("[").removesuffix("]")
    if not is_host(interface):
        raise OptionError("interface", f"{text['interface']!r} is not a host name or an IP address")
    tls = read_tls_options(text)
    port = _port(text["port"], tls)
    own_port = port if port is not None else tls.port if tls else 0
    nodes = read_addresses("cluster-nodes", text["cluster-nodes"])
    bind, *also = ring_addresses(text["cluster-bind"], interface, own_port)
    _look_for_own(bind, nodes, derived=derived)
    if "cluster-size" not in given and any(node != bind for node in nodes):
        raise OptionError("cluster-size", SIZE_FORGOTTEN.format(len({*nodes, bind})))
    size = number("cluster-size", text["cluster-size"], 1, CLUSTER_SIZE_MAX)
    group, group_port = _beacon_group(text, listed=bool(nodes))
    arbitrator = text["cluster-arbitrator"]
    if arbitrator:
        text["cluster-arbitrator"] = arbitrator = str(
            read_address("cluster-arbitrator", arbitrator)
        )
    pair = _pair(text, bind, size)
    return BrokerOptions(
        cluster_name=cluster_name,
        cluster_size=size,
        cluster_bind=bind,
        cluster_nodes=nodes,
        beacon_group=group,
        beacon_port=group_port,
        cluster_url=_cluster_url(text["cluster-url"], interface, (bind, *also), port, tls),
        port=port,
        tls=tls,
        clients=read_client_limits(text),
        interface=interface,
        data_dir=_data_dir(text, needed=bool(cluster_name) and shared is None),
        watchdog_s=number("watchdog-interval", text["watchdog-interval"], 0, 86_400),
        scrub_rate=number("scrub-rate", text["scrub-rate"], 0, SCRUB_RATE_MAX),
        access=read_access_options(text),
        backups=read_backup_options(text),
        management=read_management_options(text, interface, own_port, tls.port if tls else None),
        memberlog=read_memberlog_options(text),
        bounds=read_bounds(text),
        trace=Path(text["trace"]).expanduser().absolute() if text["trace"] else None,
        log=read_log_options(text),
        requested=read_quorum_options(text, size, pair.kept if pair is not None else ""),
        cman=yes("cluster-cman", text["cluster-cman"]),
        arbitrator=arbitrator == str(bind),
        mode=pair or _active_passive(text) or shared,
        settings=(*settings_of(text), *(pair.settings if pair is not None else ())),
        security=_security(text, (bind, *also)) if cluster_name and shared is None else OPEN,
        text=OptionTexts(text),
        cluster_bind_also=tuple(also),
    )


def _without_ring(text: Mapping[str, str], cluster_name: str) -> SharedStoreOptions | None:
    """Read whether the store is shared; refuse options of the ring where there is none."""
    of_rings = (*_RING_ONLY, *quorum_options.DEFAULTS, *security_options.DEFAULTS)
    given = [name for name in of_rings if text[name] != DEFAULTS[name]]
    shared = read_shared_store(text, given)
    for name in given:
        if not cluster_name:
            raise OptionError(name, "it needs --cluster-name: a stand-alone broker has no ring")
    return shared


def _port(text: str, tls: TlsOptions | None) -> int | None:
    if text.lower() != "none":
        port = number("port", text, 0, PORT_MAX)
        if tls is not None and port == tls.port != 0:
            raise OptionError("tls-port", f"{port} is the port without TLS; take another one")
        return port
    if tls is None:
        raise OptionError("port", "'none' needs --tls-cert and --tls-key, or nobody could connect")
    return None


def _active_passive(text: Mapping[str, str]) -> ActivePassiveOptions | None:
    url = text["ha-public-url"]
    return read_active_passive(text, shown("ha-public-url", url) if url else "")


def _pair(text: Mapping[str, str], bind: Address, size: int) -> PairOptions | None:
    own, (option, peer) = str(bind), peer_text(text)
    if peer:
        peer = str(read_address(option, peer, bind.port))
    of_others = [
        name for name in (*quorum_options.DEFAULTS, *_NO_PAIR) if text[name] != DEFAULTS[name]
    ]
    pair = read_pair(text, own, peer, of_others)
    if pair is not None and size != 2:
        raise OptionError("cluster-size", "a pair has two members: drop it, or say 2")
    if pair is not None and (bind.host in WILDCARDS or bind.port == 0):
        raise OptionError("cluster-bind", NAMELESS.format(own))
    return pair


def _with_peer(given: Mapping[str, str]) -> Mapping[str, str]:
    """Add the options that follow from a pair: the number of members, and their addresses."""
    is_one = given.get("hac") or given.get("master-slave")
    if not is_one or not given.get("cluster-name") or given.get("shared-store"):
        return given
    option, peer = peer_text(given)
    found = {"cluster-size": "2"}
    if peer:
        interface = (
            given.get("interface", DEFAULTS["interface"]).removeprefix("[").removesuffix("]")
        )
        port = given.get("port", DEFAULTS["port"])
        own = int(port) if port.isascii() and port.isdigit() else 0
        bind = ring_addresses(given.get("cluster-bind", ""), interface, own)[0]
        found["cluster-nodes"] = str(read_address(option, peer, bind.port or None))
    return {**found, **given}


def _with_ring(given: Mapping[str, str]) -> Mapping[str, str]:
    """Add the members of an active-passive cluster, by the addresses of their client ports, and
    their credentials for each other."""
    for name in given:
        if name not in DEFAULTS:
            raise OptionError(name, "there is no such option")
    if not given.get("cluster-name", "").strip() or given.get("shared-store"):
        return given
    if given.get("ha-cluster", "").strip().lower() != "yes":
        return given
    given = {**given, **ring_credentials(given)}
    url = given.get("ha-brokers-url", "").strip()
    if not url:
        return given
    clients = url_addresses("ha-brokers-url", url)
    of_tls = [f"{scheme}:{address}" for scheme, address in clients if scheme == "ssl"]
    if of_tls and "cluster-nodes" not in given:
        raise OptionError("ha-brokers-url", ha_options.OF_TLS.format(of_tls[0]))
    if of_tls:  # the same member may be there with its other port as well
        return given
    nodes = ",".join(str(ring_address(client)) for _, client in clients)
    return {"cluster-nodes": nodes, "cluster-size": str(len(clients)), **given}


def _look_for_own(own: Address, nodes: Collection[Address], *, derived: bool) -> None:
    """Refuse a list of client addresses (`derived`) in which this member cannot be."""
    if nodes and own.port == 0:
        raise OptionError(
            "cluster-bind",
            "with --cluster-nodes the ring port must be fixed, port 0 cannot be listed anywhere",
        )
    if nodes and derived and not any(_may_be(own, node) for node in nodes):
        raise OptionError(
            "ha-brokers-url", ha_options.NOT_LISTED.format(", ".join(map(str, nodes)), own)
        )


def _may_be(own: Address, listed: Address) -> bool:
    """Whether a listed address may be this member's: a host name may stand for any address."""
    if own.host in WILDCARDS or not (is_ip(own.host) and is_ip(listed.host)):
        return own.port == listed.port
    return own == listed


def _security(text: Mapping[str, str], binds: tuple[Address, ...]) -> SecurityOptions:
    """Read how members prove who they are; the most public of their addresses decides."""
    bind = next((one for one in binds if not is_loopback(one.host)), binds[0])
    security = read_security_options(text, bind.host, binds[0].port)
    if security.mechanism == "CURVE" and len(binds) > 1:
        raise OptionError(
            "cluster-bind",
            "with CURVE a member has one address, as its key belongs to that; give PLAIN, or "
            "ANONYMOUS on networks that are the members' own",
        )
    return security


def _data_dir(text: Mapping[str, str], *, needed: bool) -> Path | None:
    without = yes("no-data-dir", text["no-data-dir"])
    if text["data-dir"]:
        if without:
            raise OptionError("no-data-dir", "it contradicts --data-dir; drop one of them")
        return Path(text["data-dir"]).expanduser().absolute()
    if needed and not without:
        raise OptionError("data-dir", DATA_DIR_FORGOTTEN)
    return None


def _beacon_group(text: Mapping[str, str], *, listed: bool) -> tuple[str, int]:
    """Read where beacons go; members themselves talk over TCP, so nothing else is multicast."""
    for name in ("cluster-mcastaddr", "cluster-mcastport"):
        if listed and text[name]:
            raise OptionError(
                name,
                "nothing is sent by multicast where --cluster-nodes lists the members; drop one of "
                "them (members exchange messages over TCP, at --cluster-bind)",
            )
    group = text["cluster-mcastaddr"]
    try:
        if group and not ipaddress.IPv4Address(group).is_multicast:
            raise ValueError
    except ValueError:
        raise OptionError(
            "cluster-mcastaddr",
            f"'{group}' is not an IPv4 multicast address (224.0.0.0 to 239.255.255.255)",
        ) from None
    port = text["cluster-mcastport"]
    return group, number("cluster-mcastport", port, 1, PORT_MAX) if port else 0


def _cluster_url(
    text: str,
    interface: str,
    binds: Iterable[Address],
    port: int | None,
    tls: TlsOptions | None,
) -> str:
    if not text:
        return own_url(interface, binds, port, tls)
    return shown("cluster-url", text)


def _cluster_name(text: str) -> str:
    if len(text) > CLUSTER_NAME_CHARACTERS_MAX:
        raise OptionError(
            "cluster-name", f"it has more than {CLUSTER_NAME_CHARACTERS_MAX} characters"
        )
    if not text.isprintable():
        raise OptionError("cluster-name", "it holds a character that cannot be printed")
    return text
