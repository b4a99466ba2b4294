"""Rules of the queue contract: the promise each belongs to, and the sentence for a breach."""

from __future__ import annotations

from typing import NamedTuple

BREACHES_MAX = 100_000
"""Breaches that one task counts; a log that is wrong throughout must not fill the memory."""


class Rule(NamedTuple):
    """A rule that a log can break."""

    promise: str
    check: str  # as in the table of checks in docs/MEMBERLOG.md
    sentence: str


RULES = {
    # Single moves.
    "foreign command": Rule("LOG", "moves", "a move names a command that is not in its batch"),
    "stray": Rule("LOG", "moves", "a move says something that moves of its kind never say"),
    "disorder": Rule("LOG", "moves", "moves are not in the order of their commands"),
    "unnamed queue": Rule("LOG", "moves", "a move of a queue that the log has not named"),
    "other queue": Rule("LOG", "moves", "the queue was declared otherwise than the log names it"),
    "late command": Rule("G20", "causes", "a command that came too late moved a message"),
    "wrong cause": Rule("G20", "causes", "a command of this kind cannot cause this move"),
    "return without cause": Rule(
        "G11", "causes", "messages came back, but nothing was closed, refused or returned"
    ),
    "blob order": Rule(
        "G5", "E5 by source", "what one session submitted is not applied in its order, each once"
    ),
    "other session": Rule(
        "G5", "E5 by source", "another member went on with the session of a member"
    ),
    # C1: exactly once.
    "publish lost": Rule("G20", "C1 enqueue", "a publish was accepted, but became no message"),
    "publish doubled": Rule("G20", "C1 enqueue", "one publish became more than one message"),
    "publish misrouted": Rule(
        "G20",
        "C1 enqueue",
        "a publish was answered as unroutable and has a message, or as routed and has none; or as "
        "one that came again, and is none",
    ),
    "publish invented": Rule(
        "G20", "C1 enqueue", "a message was published by a command that published none"
    ),
    "number": Rule("G20", "C1 enqueue", "the numbers of messages do not rise by one"),
    "place": Rule("G20", "C1 enqueue", "the places in the queue do not rise by one"),
    "enqueued unpublished": Rule(
        "G20", "C1 enqueue", "entered the queue without being published by this command"
    ),
    "enqueued twice": Rule("G20", "C1 enqueue", "one message entered the queue twice"),
    "place twice": Rule("G20", "C1 enqueue", "a second message entered at the same place"),
    # C2: one end.
    "invented": Rule("G20", "C2 one end", "was moved, but never entered the queue"),
    "ended twice": Rule("G20", "C2 one end", "ended a second time"),
    "persistence": Rule(
        "G20", "C2 one end", "entered the queue with another persistence than it was published with"
    ),
    "lapsed alive": Rule(
        "G20", "C2 one end", "was given up with its deleted queue, which was not deleted"
    ),
    "settled unheld": Rule("G20", "C2 one end", "was settled while nobody held it"),
    "returned unheld": Rule("G20", "C2 one end", "came back while nobody held it"),
    "dropped held": Rule("G20", "C2 one end", "was dropped while a channel held it"),
    "dropped ended": Rule("G20", "C2 one end", "was dropped after its end"),
    "into deleted": Rule("G20", "C2 one end", "entered or came back to a queue that was deleted"),
    "kept others": Rule(
        "G20", "C2 one end", "a cold start did not keep exactly the persistent messages"
    ),
    "content": Rule("G20", "C2 one end", "is not the message that entered the queue"),
    # C3: delivery discipline.
    "delivered ended": Rule("G11", "C3 delivery", "was delivered after its end"),
    "first flagged": Rule(
        "G11", "C3 delivery", "carries the redelivered flag, but was not delivered before"
    ),
    "again unflagged": Rule(
        "G11", "C3 delivery", "was delivered again without the redelivered flag"
    ),
    # C4: one holder.
    "delivered held": Rule(
        "G13", "C4 one holder", "was delivered while another channel, or the same, still held it"
    ),
    "other holder": Rule("G13", "C4 one holder", "was given up by a channel that did not hold it"),
    # C5: order.
    "overtaken": Rule("G12", "C5 order", "left the queue for the first time before an older one"),
    "publisher order": Rule(
        "G12", "C5 order", "entered behind a message that its channel published later"
    ),
    # H1: roots.
    "other root": Rule(
        "G14", "H1 roots", "a checkpoint has another state root than the state before it"
    ),
    # H2: a second model.
    "wrong message": Rule(
        "G12", "H2 replay", "was taken from the queue while an older one was ready"
    ),
    "wrong state": Rule(
        "G20", "H2 replay", "the model of queues arrives at another state than the log says"
    ),
    "impossible": Rule("G20", "H2 replay", "the model of queues knows no such message there"),
}


class Breach(NamedTuple):
    """One broken rule, where it shows; -1 = does not apply."""

    rule: str
    position: int
    ordinal: int
    queue: int
    seq: int
    channel: int = -1
    since: int = -1  # the position of the message's previous move
    more: str = ""  # figures


def first_by_rule(breaches: list[Breach]) -> list[tuple[Breach, int]]:
    """Return the first breach of each rule, and how many there are, ascending by position."""
    counts: dict[str, int] = {}
    firsts: dict[str, Breach] = {}
    for breach in breaches:
        counts[breach.rule] = counts.get(breach.rule, 0) + 1
        known = firsts.setdefault(breach.rule, breach)
        if (breach.position, breach.ordinal) < (known.position, known.ordinal):
            firsts[breach.rule] = breach
    return sorted(
        ((breach, counts[rule]) for rule, breach in firsts.items()),
        key=lambda pair: (pair[0].position, pair[0].ordinal, pair[0].rule),
    )
