"""The options of modes in which one broker serves and others stand by.

*Active-passive*, by the names of Qpid's HA module, a *pair*, as OpenAMQ's HAC or ActiveMQ's pure
master/slave, and a *shared store*, as ActiveMQ's.  In the first two members replicate as ever; only
the active one takes ordinary clients.  What the ring makes needless is either taken and has no
effect, because a configuration that has it asks for nothing that is not given, or refused with what
to use in its place.  Of a shared store the lease is in files of its directory, or in a row of a
database.

A pair is a cluster of two voters and one vote that is no machine's (`vsync.quorum.voter_set`), in
which one member takes clients.  Who takes the vote when the other one is lost is what the two modes
differ in: with HAC a member that sees clients, with master/slave either, or, with
`--shutdown-on-master-failure yes`, the master only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from broker.options.values import (
    Kind,
    Option,
    OptionError,
    choice,
    defaults_of,
    number,
    without_password,
    yes,
)
from vsync.types import record

AUTOMATIC, MANUAL = "automatic", "manual"
NO_EFFECT: Mapping[str, str] = {
    "ha-replicate": "every queue, exchange and message is on every member",
    "link-heartbeat-interval": "the ring sees within a second that a member is lost",
    "link-maintenance-interval": "the ring finds a member that is back by itself",
}
"""Options that are taken, and why they change nothing."""
STANDS_FOR: Mapping[str, str] = {
    "ha-username": "cluster-username",
    "ha-password": "cluster-password",
    "ha-mechanism": "cluster-mechanism",
}
"""Members prove who they are on the ring, not over AMQP: where nothing is said of the ring, what a
backup was to show to the primary is what each member shows to the others."""
OF_RING = (*STANDS_FOR.values(), "cluster-key", "cluster-allow")
LEVELS = ("none", "configuration", "all")
"""What Qpid replicates of an object.  Each is taken, as each asks for no more than is given."""
MECHANISMS = ("PLAIN", "ANONYMOUS")
NOT_LISTED = (
    "as ring addresses (each port + 20000) it lists {0}, and this member's, {1}, is not among "
    "them: list all members, this one by its --interface and --port, or give --cluster-nodes and "
    "--cluster-size"
)
OF_TLS = (
    "'{0}' is a port for TLS, and no port of the ring follows from it: give --cluster-nodes and "
    "--cluster-size besides"
)
LEASE_DEFAULT, LEASE_MS = "800", (200, 60_000)
NO_RING = (
    "--shared-store is for brokers of which one leads and the others wait, without a ring; drop "
    "it, or give each member a --data-dir of its own"
)
HAC, MASTER_SLAVE = "hac", "master-slave"
PRIMARY, BACKUP, MASTER, SLAVE = "primary", "backup", "master", "slave"
PAIR_TIMEOUT_MS = (0, 3_600_000)
PAIR_OPTIONS: Mapping[str, Option] = {
    "hac": Option("", "primary|backup",
        "A pair after OpenAMQ: one of two members serves clients; the other takes over when it is "
        "lost and clients connect to it. Say for each which it is."),
    "hac-peer": Option("", "HOST[:PORT]",
        "With --hac: ring address of the other member (its --cluster-bind). Default of PORT: that "
        "of this member."),
    "master-slave": Option("", "master|slave",
        "A pair after ActiveMQ: the master serves clients, and answers when the slave has the "
        "change, too; the slave serves none until the master is lost."),
    "master-connector": Option("", "HOST[:PORT]",
        "At the slave: ring address of the master (its --cluster-bind). Default of PORT: that of "
        "this member."),
    "shutdown-on-master-failure": Option("no", "yes|no",
        "With --master-slave: when the master is lost, the slave stops instead of taking over. "
        "The same at both. Default no.", Kind.EQUAL),
    "master-failure-timeout": Option("300", "MS",
        "With --master-slave: how long the master must be lost before the slave takes over, or "
        "stops. Default 300.", Kind.ALIKE),
}  # fmt: skip
PAIR_DEFAULTS = defaults_of(PAIR_OPTIONS)

OTHER_RULE = (
    "the voters of a pair have a rule of their own: drop it, or drop --{0} and make a cluster of "
    "three, or of two and an arbitrator"
)
NAMELESS = (
    "a pair knows its members by their ring addresses, and {0} is none that the other one could "
    "know this member by: give --cluster-bind HOST:PORT, as the other one has it"
)
OPTIONS: Mapping[str, Option] = {
    "shared-store": Option("", "DIR",
        "Share one store with the other brokers that are started with the same DIR, on a file "
        "system that all of them reach: one leads and serves, the others wait and take over."),
    "shared-store-lease": Option(LEASE_DEFAULT, "MS",
        "How long the leader may continue without renewing its lease; it renews four times as "
        "often. Increase it on slow file systems. Default 800."),
    "shared-store-lock": Option("", "URL",
        "Keep the lease on DIR in a database instead of in DIR: postgresql://USER@HOST/DATABASE "
        "(password: PGPASSFILE), or sqlite:///FILE for brokers of one machine. The messages stay "
        "in DIR. The same at all brokers of DIR."),
    "ha-cluster": Option("no", "yes|no",
        "Active-passive: only the active member serves clients; the others are its backups and "
        "hold the same state. The same at all members. Default no: clients may use any member.",
        Kind.EQUAL),
    "ha-promotion": Option(AUTOMATIC, "automatic|manual",
        "How a backup takes over when the active member is lost: by itself, or by an operator's "
        "qpid-ha promote. The same at all members. Default automatic.", Kind.EQUAL),
    "ha-brokers-url": Option("", "URL",
        "Client addresses of all members, including this one, amqp:HOST:PORT,... Implies "
        "--cluster-nodes (each port + 20000) and --cluster-size where these are not given."),
    "ha-public-url": Option("", "URL",
        "Where backups send clients: an address that moves with the active member. Default: the "
        "--cluster-url of the active member."),
    "ha-replicate": Option("", "none|configuration|all",
        "Accepted for compatibility with Qpid, without effect: everything is replicated."),
    "ha-queue-replication": Option("no", "no",
        "Accepted for compatibility with Qpid: qpid-ha replicate does not need it."),
    "ha-backup-timeout": Option("0", "SECONDS",
        "How long a confirm waits at most for the disks of all backups, once a majority of the "
        "voters has the message on disk. Default 0: not at all.", Kind.ALIKE),
    "ha-username": Option("", "NAME", "Same as --cluster-username."),
    "ha-password": Option("", "WORD", "Same as --cluster-password."),
    "ha-mechanism": Option("", "PLAIN|ANONYMOUS", "Same as --cluster-mechanism."),
    "link-heartbeat-interval": Option("", "SECONDS",
        "Accepted for compatibility with Qpid, without effect."),
    "link-maintenance-interval": Option("", "SECONDS",
        "Accepted for compatibility with Qpid, without effect."),
    **PAIR_OPTIONS,
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)

_POSTGRESQL = ("postgresql://", "postgres://")
_SQLITE = "sqlite://"
_INSTALL = "pip install 'qpid-cluster-py[postgresql]'"
_USER = re.compile(r"\w+://[^@/]*@", re.ASCII)
"""As libpq takes it from a URL."""
_QUOTED = re.compile(r'"([^"]*)"')
"""What libpq quotes of a URL may be of its password."""
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(s|ms|us|ns)?", re.ASCII)
_UNITS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@record
class ActivePassiveOptions:
    """How one member of an active-passive cluster takes part."""

    automatic: bool
    """Whether the ring chooses a new active member, and not an operator."""
    public_url: str
    """Where clients are sent; empty: to the active member."""
    needless: tuple[str, ...]
    """Sentences about options that were given and have no effect."""
    backup_timeout_s: float = 0.0
    """For how long confirms wait for the disks of all members; 0: for those of a majority."""


ONE_OF_PAIR = ActivePassiveOptions(automatic=True, public_url="", needless=())
"""How a member of a pair takes part (`broker.options.pair`)."""


def read_active_passive(text: Mapping[str, str], public_url: str) -> ActivePassiveOptions | None:
    """Read the options of the mode; None: any member takes clients.

    `public_url` is read already.
    """
    yes("ha-queue-replication", text["ha-queue-replication"])
    if not yes("ha-cluster", text["ha-cluster"]):
        for option in DEFAULTS:
            if option == "ha-queue-replication":
                continue  # it is for brokers in no such cluster
            if option.startswith("ha-") and text[option].lower() != DEFAULTS[option]:
                raise OptionError(option, "it needs --ha-cluster yes")
        return None
    if not text["cluster-name"]:
        raise OptionError(
            "ha-cluster",
            "it needs --cluster-name, the same at all members, and a way to find them: "
            "--ha-brokers-url or --cluster-nodes",
        )
    if text["ha-replicate"]:
        choice("ha-replicate", text["ha-replicate"].lower(), LEVELS)
    if (wanted := text["ha-mechanism"]) and wanted.upper() not in MECHANISMS:
        raise OptionError(
            "ha-mechanism",
            f"members do not speak '{wanted}' to each other: say PLAIN, or drop it and give each "
            "member keys (--cluster-key and --cluster-allow; qpid-cluster-keys makes them)",
        )
    timeout_s, *_ = (
        _seconds(option, text[option])
        for option in ("ha-backup-timeout", "link-heartbeat-interval", "link-maintenance-interval")
    )
    promotion = choice("ha-promotion", text["ha-promotion"].lower(), (AUTOMATIC, MANUAL))
    needless = [
        f"--{option} has no effect: {NO_EFFECT[option]}" for option in NO_EFFECT if text[option]
    ]
    for option, of_ring in STANDS_FOR.items():
        if text[option] and text[option] != text[of_ring]:
            needless.append(
                f"--{option} has no effect: members show each other what --cluster-... say"
            )
    return ActivePassiveOptions(
        automatic=promotion == AUTOMATIC,
        public_url=public_url,
        needless=tuple(needless),
        backup_timeout_s=timeout_s,
    )


def _seconds(option: str, text: str) -> float:
    """Read a time as Qpid's options have it; nothing: 0."""
    found = _SECONDS.fullmatch(text or "0")
    if found is None:
        raise OptionError(option, f"'{text}' is no number of seconds (10, 0.5, 100ms)")
    return float(found[1]) * _UNITS[found[2]]


def ring_credentials(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the ring is told by Qpid's names for it, unless it is told anything itself."""
    if any(map(given.get, OF_RING)):
        return {}
    return {of_ring: given[option] for option, of_ring in STANDS_FOR.items() if given.get(option)}


@record
class DatabaseLock:
    """The database that keeps the lease."""

    url: str
    shown: str
    """For people: without a password."""
    file: Path | None = None
    """Of SQLite; None: it is PostgreSQL."""


class SharedStoreOptions(NamedTuple):
    """Where a shared store is, and how long its leader may act after each renewal of its lease."""

    directory: Path
    """Absolute."""
    lease_ms: int
    lock: DatabaseLock | None = None
    """Where the lease is kept; None: in files of the directory."""


def read_shared_store(
    text: Mapping[str, str], of_rings: Sequence[str]
) -> SharedStoreOptions | None:
    """Read the options; None: the store is this broker's.  Raises OptionError.

    `of_rings`: options that were given and that only a ring has.
    """
    lease_ms = number("shared-store-lease", text["shared-store-lease"], *LEASE_MS)
    if not text["shared-store"]:
        for option in ("shared-store-lease", "shared-store-lock"):
            if text[option] != DEFAULTS[option]:
                raise OptionError(option, "it needs --shared-store")
        return None
    of_rings = [*(["ha-cluster"] if yes("ha-cluster", text["ha-cluster"]) else []), *of_rings]
    if of_rings:
        raise OptionError(of_rings[0], NO_RING)
    if text["data-dir"]:
        raise OptionError("data-dir", "who leads has it in --shared-store; drop one of the two")
    if text["no-data-dir"].lower() == "yes":
        raise OptionError("no-data-dir", "it contradicts --shared-store; drop one of the two")
    directory = Path(text["shared-store"]).expanduser().absolute()
    lock = _lock("shared-store-lock", text["shared-store-lock"])
    return SharedStoreOptions(directory, lease_ms, lock)


def _lock(option: str, url: str) -> DatabaseLock | None:
    if not url:
        return None
    shown = without_password(url)
    if url.startswith(_SQLITE):
        path = unquote(url.removeprefix(_SQLITE))
        if not path.startswith("/") or not path.strip("/") or "?" in url:
            raise OptionError(option, f"'{shown}' is not of the form sqlite:///DIR/FILE")
        return DatabaseLock(url, shown, Path("/" + path.lstrip("/")))
    if not url.startswith(_POSTGRESQL):
        raise OptionError(
            option, f"'{shown}' begins neither with postgresql:// nor with sqlite:///"
        )
    if find_spec("psycopg") is None:
        raise OptionError(option, f"a lease in PostgreSQL needs the package psycopg: {_INSTALL}")
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            option, f"the package psycopg cannot be loaded ({reason}): {_INSTALL} has all of it"
        ) from error

    found = _USER.match(url)
    if "@" in url[found.end() if found else 0 :].partition("?")[0]:
        raise OptionError(
            option,
            f"'{shown}' has an @ where no user ends: in a user or a password write %40 for @, %2F "
            "for / and %25 for %",
        )
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        reason = _QUOTED.sub(
            lambda found: found[0] if found[1] in shown else '"***"', " ".join(str(error).split())
        )
        raise OptionError(option, f"'{shown}': {reason}") from error
    return DatabaseLock(url, shown)


# -- pairs ----------------------------------------------------------------------------------------


class PairOptions(NamedTuple):
    """How one member takes part in a pair."""

    mode: str
    """`hac` or `master-slave`."""
    seat: str
    """`primary` or `backup`; `master` or `slave`."""
    peer: str
    """The other one's ring address; empty: it is not known yet, and comes by itself."""
    kept: str
    """Whose history is kept if both went on alone: the backup's, the master's."""
    slave_ends: bool = False
    """Whether the slave ends when the master is lost."""
    timeout_s: float = 0.0
    """How long the master must be lost before."""

    @property
    def is_first(self) -> bool:
        """Whether this member takes clients where both are there and none does."""
        return self.seat in (PRIMARY, MASTER)

    @property
    def lets_the_other_lead(self) -> bool:
        """Whether the other one is to go on when this member stops in order."""
        return not (self.slave_ends and self.seat == MASTER)

    @property
    def settings(self) -> tuple[tuple[str, str, bool], ...]:
        """What must be equal at both (`vsync.primary.settings`)."""
        return (("pair-mode", self.mode + ("; slave ends" if self.slave_ends else ""), True),)


def peer_text(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the option that names the other member, and its text; empty where none does."""
    name = next((name for name in ("hac-peer", "master-connector") if given.get(name)), "")
    return name, given.get(name, "").strip()


def read_pair(
    text: Mapping[str, str], own: str, peer: str, of_others: Sequence[str]
) -> PairOptions | None:
    """Read the options; None: no pair.  Raises OptionError.

    `own`, `peer`: the ring addresses of the two.  `of_others`: options that were given and that a
    pair does not go with.
    """
    seat = text["hac"].lower() or text["master-slave"].lower()
    if not seat:
        for option, default in PAIR_DEFAULTS.items():
            if text[option] != default:
                needed = "--hac" if option.startswith("hac") else "--master-slave"
                raise OptionError(option, f"it needs {needed}")
        return None
    if text["hac"] and text["master-slave"]:
        raise OptionError("master-slave", "a pair has one mode: drop this, or --hac")
    mode = HAC if text["hac"] else MASTER_SLAVE
    for option in of_others:
        raise OptionError(option, OTHER_RULE.format(mode))
    if not text["cluster-name"]:
        raise OptionError(mode, "it needs --cluster-name, the same at both members")
    if mode == HAC:
        return _read_hac(text, choice(HAC, seat, (PRIMARY, BACKUP)), own, peer)
    return _read_master_slave(text, choice(MASTER_SLAVE, seat, (MASTER, SLAVE)), own, peer)


def _read_hac(text: Mapping[str, str], seat: str, own: str, peer: str) -> PairOptions:
    for option, default in PAIR_DEFAULTS.items():
        if not option.startswith("hac") and text[option] != default:
            raise OptionError(option, "it is of --master-slave, and this is a pair by --hac")
    if not text["hac-peer"]:
        raise OptionError("hac", "it needs --hac-peer: the ring address of the other one")
    if peer == own:
        raise OptionError("hac-peer", f"{peer} is this member itself: name the other one")
    return PairOptions(HAC, seat, peer, peer if seat == PRIMARY else own)


def _read_master_slave(text: Mapping[str, str], seat: str, own: str, peer: str) -> PairOptions:
    if text["hac-peer"]:
        raise OptionError("hac-peer", "it is of --hac, and this is a pair by --master-slave")
    if seat == MASTER and text["master-connector"]:
        raise OptionError(
            "master-connector", "the slave names the master, and the master nobody: drop it here"
        )
    if seat == SLAVE and not text["master-connector"]:
        raise OptionError("master-slave", "a slave needs --master-connector: where the master is")
    if peer == own:
        raise OptionError("master-connector", f"{peer} is this member itself: name the master")
    ends = yes("shutdown-on-master-failure", text["shutdown-on-master-failure"])
    timeout_ms = number("master-failure-timeout", text["master-failure-timeout"], *PAIR_TIMEOUT_MS)
    kept = own if seat == MASTER else peer
    return PairOptions(MASTER_SLAVE, seat, peer, kept, ends, timeout_ms / 1000)
