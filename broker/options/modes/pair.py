"""The options of a pair, as OpenAMQ's HAC or ActiveMQ's pure master/slave.

A pair is a cluster of two voters and one vote that is no machine's (`vsync.quorum.voter_set`), in
which one member takes clients. The two modes differ in which member takes the vote when its peer is
lost: with HAC a member that sees clients, with master/slave either, or, with
`--shutdown-on-master-failure yes`, the master only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.options.values import Kind, Option, OptionError, choice, defaults_of, number, yes

HAC, MASTER_SLAVE = "hac", "master-slave"
PRIMARY, BACKUP, MASTER, SLAVE = "primary", "backup", "master", "slave"
PAIR_TIMEOUT_MS = (0, 3_600_000)
OPTIONS: Mapping[str, Option] = {
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
DEFAULTS = defaults_of(OPTIONS)

OTHER_RULE = (
    "the voters of a pair have a rule of their own: drop it, or drop --{0} and make a cluster of "
    "three, or of two and an arbitrator"
)
NAMELESS = (
    "a pair knows its members by their ring addresses, and {0} is none that the other one could "
    "know this member by: give --cluster-bind HOST:PORT, as the other one has it"
)


class PairOptions(NamedTuple):
    """How one member takes part in a pair."""

    mode: str
    """`hac` or `master-slave`."""
    seat: str
    """`primary` or `backup`; `master` or `slave`."""
    peer: str
    """The peer's ring address; empty: not known yet, the peer will connect by itself."""
    kept: str
    """The seat whose history is kept if both went on alone: the backup's, the master's."""
    slave_ends: bool = False
    """Whether the slave ends when the master is lost."""
    timeout_s: float = 0.0
    """How long the master must be lost before the slave acts."""

    @property
    def is_first(self) -> bool:
        """Whether this member takes clients if both are present and neither is active."""
        return self.seat in (PRIMARY, MASTER)

    @property
    def lets_the_other_lead(self) -> bool:
        """Whether the peer goes on when this member stops in order."""
        return not (self.slave_ends and self.seat == MASTER)

    @property
    def settings(self) -> tuple[tuple[str, str, bool], ...]:
        """Return the settings that must be equal at both members (`vsync.primary.settings`)."""
        return (("pair-mode", self.mode + ("; slave ends" if self.slave_ends else ""), True),)


def peer_text(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the option that names the peer, and its text; empty if none does."""
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
        for option, default in DEFAULTS.items():
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
    for option, default in DEFAULTS.items():
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
