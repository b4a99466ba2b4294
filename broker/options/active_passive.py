"""The options of an active-passive cluster, by the names of Qpid's HA module.

Members replicate as ever; only the active one takes ordinary clients.  What the ring makes
needless is either taken and has no effect, because a configuration that has it asks for nothing
that is not given, or refused with what to use in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker.options.values import OptionError, choice, yes
from vsync.types import record

AUTOMATIC, MANUAL = "automatic", "manual"
NO_EFFECT: Mapping[str, str] = {
    "ha-replicate": "every queue, exchange and message is on every member",
    "ha-backup-timeout": "a confirm waits for the members of the view and the disks of a majority "
    "of the voters, never for a member that is away",
    "link-heartbeat-interval": "the ring sees within a second that a member is lost",
    "link-maintenance-interval": "the ring finds a member that is back by itself",
}
"""Options that are taken, and why they change nothing."""
INSTEAD: Mapping[str, str] = {
    "ha-username": "--cluster-username",
    "ha-password": "--cluster-password",
    "ha-mechanism": "--cluster-mechanism",
}
"""Options that are refused, and what to use: members prove who they are on the ring."""
NOT_LISTED = (
    "as ring addresses (each port + 20000) it lists {0}, and this member's, {1}, is not among "
    "them: list all members, this one by its --interface and --port, or give --cluster-nodes and "
    "--cluster-size"
)
OF_TLS = (
    "'{0}' is a port for TLS, and no port of the ring follows from it: give --cluster-nodes and "
    "--cluster-size besides"
)
DEFAULTS: Mapping[str, str] = {
    "ha-cluster": "no",
    "ha-promotion": AUTOMATIC,
    "ha-brokers-url": "",
    "ha-public-url": "",
    "ha-queue-replication": "no",
    **dict.fromkeys(NO_EFFECT, ""),
    **dict.fromkeys(INSTEAD, ""),
}
HELP: Mapping[str, tuple[str, str]] = {
    "ha-cluster": (
        "yes|no",
        "Active-passive: only the active member takes clients, the others are its backups, with "
        "the same state. The same at all members. Default no: clients may use any member.",
    ),
    "ha-promotion": (
        "automatic|manual",
        "Who has a backup take over when the active member is gone: the ring, or whoever runs "
        "qpid-ha promote. The same at all members. Default automatic.",
    ),
    "ha-brokers-url": (
        "URL",
        "The client addresses of all members, this one's too, amqp:HOST:PORT,...: stands for "
        "--cluster-nodes (each port + 20000) and --cluster-size, where these are not given.",
    ),
    "ha-public-url": (
        "URL",
        "Where backups send clients: the address that moves with the active member. Default: the "
        "--cluster-url of that member.",
    ),
    "ha-replicate": ("all", "Taken for Qpid's sake: everything is replicated."),
    "ha-queue-replication": ("no", "Taken for Qpid's sake; yes is refused."),
    "ha-backup-timeout": ("SECONDS", "Taken for Qpid's sake, without effect: nothing waits."),
    "ha-username": ("NAME", "Refused: give --cluster-username."),
    "ha-password": ("WORD", "Refused: give --cluster-password."),
    "ha-mechanism": ("WHICH", "Refused: give --cluster-mechanism."),
    "link-heartbeat-interval": ("SECONDS", "Taken for Qpid's sake, without effect."),
    "link-maintenance-interval": ("SECONDS", "Taken for Qpid's sake, without effect."),
}
"""A placeholder and a sentence for each option."""

_SECONDS = re.compile(r"\d+(\.\d+)?(s|ms|us|ns)?", re.ASCII)


@record
class ActivePassiveOptions:
    """How one member of an active-passive cluster takes part."""

    automatic: bool
    """Whether the ring chooses a new active member, and not an operator."""
    public_url: str
    """Where clients are sent; empty: to the active member."""
    needless: tuple[str, ...]
    """Sentences about options that were given and have no effect."""


def read_active_passive(text: Mapping[str, str], public_url: str) -> ActivePassiveOptions | None:
    """Read the options of the mode; None: any member takes clients.

    `public_url` is read already.
    """
    for option, instead in INSTEAD.items():
        if text[option]:
            raise OptionError(
                option,
                f"members prove who they are on the ring, not over AMQP: give {instead} instead",
            )
    if yes("ha-queue-replication", text["ha-queue-replication"]):
        raise OptionError(
            "ha-queue-replication",
            "single queues are not replicated: make the brokers members of one cluster "
            "(--cluster-name), which have all queues",
        )
    if not yes("ha-cluster", text["ha-cluster"]):
        for option in DEFAULTS:
            if option.startswith("ha-") and text[option].lower() != DEFAULTS[option]:
                raise OptionError(option, "it needs --ha-cluster yes")
        return None
    if not text["cluster-name"]:
        raise OptionError(
            "ha-cluster",
            "it needs --cluster-name, the same at all members, and a way to find them: "
            "--ha-brokers-url or --cluster-nodes",
        )
    if text["ha-replicate"] not in ("", "all"):
        raise OptionError(
            "ha-replicate",
            f"'{text['ha-replicate']}' is not possible, as {NO_EFFECT['ha-replicate']}: say all, "
            "or nothing; keep what is not to be replicated on a broker of its own",
        )
    for option in NO_EFFECT:
        if option != "ha-replicate" and text[option] and not _SECONDS.fullmatch(text[option]):
            raise OptionError(option, f"'{text[option]}' is no number of seconds (10, 0.5, 100ms)")
    promotion = choice("ha-promotion", text["ha-promotion"].lower(), (AUTOMATIC, MANUAL))
    given = [option for option in NO_EFFECT if text[option]]
    return ActivePassiveOptions(
        automatic=promotion == AUTOMATIC,
        public_url=public_url,
        needless=tuple(f"--{option} has no effect: {NO_EFFECT[option]}" for option in given),
    )
