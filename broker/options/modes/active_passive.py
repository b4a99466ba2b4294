"""The options of active-passive clusters, by the names of Qpid's HA module.

Members replicate as in any cluster; only the active one takes ordinary clients. An option that the
ring makes needless is either accepted without effect, if everything it asks for holds anyway, or
refused with the option to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker.options.values import Kind, Option, OptionError, choice, defaults_of, yes
from vsync.types import record

AUTOMATIC, MANUAL = "automatic", "manual"
NO_EFFECT: Mapping[str, str] = {
    "ha-replicate": "every queue, exchange and message is on every member",
    "link-heartbeat-interval": "the ring sees within a second that a member is lost",
    "link-maintenance-interval": "the ring finds a member that is back by itself",
}
"""Options that are accepted, and why they change nothing."""
STANDS_FOR: Mapping[str, str] = {
    "ha-username": "cluster-username",
    "ha-password": "cluster-password",
    "ha-mechanism": "cluster-mechanism",
}
"""Members authenticate on the ring, not over AMQP: unless the ring has options of its own, a
backup's credentials for the primary are each member's credentials for the others."""
OF_RING = (*STANDS_FOR.values(), "cluster-key", "cluster-allow")
LEVELS = ("none", "configuration", "all")
"""Qpid's levels of replication. Each is accepted, as none asks for more than members always do."""
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
OPTIONS: Mapping[str, Option] = {
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
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(s|ms|us|ns)?", re.ASCII)
_UNITS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@record
class ActivePassiveOptions:
    """How one member of an active-passive cluster takes part."""

    automatic: bool
    """Whether the ring, not an operator, chooses a new active member."""
    public_url: str
    """Where clients are sent; empty: to the active member."""
    needless: tuple[str, ...]
    """Sentences about options that were given and have no effect."""
    backup_timeout_s: float = 0.0
    """How long confirms wait for the disks of all members; 0: only for those of a majority."""


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
    """Read a time in the form of Qpid's options; empty: 0."""
    found = _SECONDS.fullmatch(text or "0")
    if found is None:
        raise OptionError(option, f"'{text}' is no number of seconds (10, 0.5, 100ms)")
    return float(found[1]) * _UNITS[found[2]]


def ring_credentials(given: Mapping[str, str]) -> dict[str, str]:
    """Return the ring's credentials from Qpid's options, unless the ring's own are given."""
    if any(map(given.get, OF_RING)):
        return {}
    return {of_ring: given[option] for option, of_ring in STANDS_FOR.items() if given.get(option)}
