"""Passes the moves of a part through the model of queues at once, where all of them are plain.

Nearly all messages are published, enter one plain queue, leave it in turn, unflagged, and are
acknowledged, and nearly all parts of logs hold nothing else.  Columns show whether a part is so:
then its moves break no rule but those about the whole life of a message, which are answered
elsewhere, and it is known what they leave in the model.  If anything else is in a part, the model
executes its moves one by one, and the rules are answered over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tools.verify.contract.causes import OWN
from tools.verify.contract.queue_model import Message, Model, ModelQueue
from tools.verify.contract.reasons import Reasons
from tools.verify.format.commands import Command
from tools.verify.format.moves import Op
from tools.verify.input.tables import Columns, Ints

_MOVES_OF_QUEUE = 64  # on average: with fewer, executing them takes no longer
_LOW = (1 << 32) - 1


class _Passage(NamedTuple):
    """What the moves of one queue do, as places of these among all moves."""

    queue: ModelQueue
    first: int  # place in the queue of the first delivered message, if one is
    delivered: Ints
    came: Ints  # the entries of those delivered, but for messages that waited before
    stay: Ints  # the other entries
    held: Ints  # settled ones that were delivered before
    ended: Ints  # the other settled ones
    nth: Ints  # which of those delivered these are


def take_plain(
    model: Model, reasons: Reasons, priorities: Mapping[int, int], moves: Columns, commands: Columns
) -> bool:
    """Take the moves of a part if they are plain; return whether they are.

    `priorities`: the highest ones of the queues that the log has named; -1: it is a plain queue.
    """
    kinds = commands["kind"].astype(np.uint8).tobytes()
    if not (_is_in_order(moves, commands, model.next_message) and reasons.is_quiet(kinds)):
        return False
    by_queue = list(_by_queue(moves["queue"], moves["op"]))
    if len(by_queue) * _MOVES_OF_QUEUE > len(moves["op"]):
        return False
    passages: list[_Passage] = []
    for number, rows in by_queue:
        queue, passage = model.queues.get(number), None
        if queue is not None and priorities.get(number) == -1 and number not in reasons.queues:
            passage = _passage(queue, moves, rows)
        if passage is None:
            return False
        passages.append(passage)
    if not _take_tags(passages, reasons, moves):
        return False
    for passage in passages:
        _pass(passage, moves)
    published = np.flatnonzero(moves["op"] == Op.PUBLISHED)
    if len(published):
        [(body, flag)] = _facts(moves, published[-1:])
        model.pass_over(len(published), body)
        reasons.pass_over(int(moves["position"][-1]), body, persistent=flag)
    return True


def _is_in_order(moves: Columns, commands: Columns, number: int) -> bool:
    """Return whether each move is of a plain kind and of a command that was executed, in its order,
    each publish has one, with the next number, and each entry is of the message just published.

    A move that names no command of its batch is caused by none.
    """
    op, seq, of, flag, position = (moves[name] for name in ("op", "seq", "of", "flag", "position"))
    published, entered = (np.flatnonzero(op == one) for one in (Op.PUBLISHED, Op.ENQUEUED))
    source = moves["source"][entered]
    numbered = published[moves["queue"][published] > 0]
    numbered = numbered[np.argsort(of[numbered], kind="stable")]
    same_channel = of[numbered][1:] == of[numbered][:-1]
    own = np.flatnonzero(moves["caused"] == OWN)
    same_command = position[own][1:] == position[own][:-1]
    return bool(
        len(op)
        and (op <= Op.SETTLED).all()
        and not (moves["cause"].any() or flag[op >= Op.DELIVERED].any())
        and not moves["outcome"].any()
        and (moves["caused"] > 0).all() and not np.diff(of[own])[same_command].any()
        and (position >= moves["before"]).all()
        and np.array_equal(
            position[published], commands["position"][commands["kind"] == Command.PUBLISH]
        )
        and _rises_from(seq[published], number)
        and (np.diff(moves["queue"][numbered])[same_channel] > 0).all()
        and (np.diff(source, prepend=-1) > 0).all()
        and np.array_equal(position[source], position[entered])
        and np.array_equal(seq[source] & _LOW, of[entered])
        and np.array_equal(flag[source], flag[entered])
    )  # fmt: skip


def _rises_from(column: Ints, first: int) -> bool:
    return np.array_equal(column, np.arange(first, first + len(column)))


def _by_queue(queue: Ints, op: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each queue, and the places of its moves."""
    rows = np.flatnonzero(op != Op.PUBLISHED)
    rows = rows[np.argsort(queue[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(queue[rows], prepend=-1))
    for of_one in np.split(rows, begins)[1:]:
        yield int(queue[of_one[0]]), of_one


def _passage(queue: ModelQueue, moves: Columns, rows: Ints) -> _Passage | None:
    """Return what moves of a queue do; None: not all of them are plain.

    Places are without a gap, so that each message delivered is the oldest one then.
    """
    seq, of, detail = moves["seq"], moves["of"], moves["detail"]
    op = moves["op"][rows]
    entered, delivered, settled = (
        rows[op == one] for one in (Op.ENQUEUED, Op.DELIVERED, Op.SETTLED)
    )
    first = min(queue.ready, default=queue.next_seq)
    waited = queue.next_seq - first
    later = delivered[waited:]
    came, nth = entered[: len(later)], seq[settled] - first
    held, ended, nth = settled[nth < 0], settled[nth >= 0], nth[nth >= 0]
    if not (
        queue.is_plain() and len(queue.ready) == waited
        and _rises_from(seq[entered], queue.next_seq) and _rises_from(seq[delivered], first)
        and len(came) == len(later) and (later > came).all()
        and np.array_equal(detail[later], detail[came])
        and (nth < len(delivered)).all() and (np.bincount(nth) < 2).all()
        and (ended > delivered[nth]).all() and np.array_equal(of[ended], of[delivered[nth]])
    ):  # fmt: skip
        return None
    for place, (content, _) in enumerate(_facts(moves, delivered[:waited]), first):
        known = queue.ready[place]
        if known.redelivered or known.content != content:
            return None
    holders = dict(zip(seq[held].tolist(), of[held].tolist(), strict=True))
    if len(holders) < len(held) or any(
        place not in queue.held or queue.held[place][1] != channel
        for place, channel in holders.items()
    ):
        return None
    return _Passage(queue, first, delivered, came, entered[len(came) :], held, ended, nth)


def _take_tags(passages: list[_Passage], reasons: Reasons, moves: Columns) -> bool:
    """Take the tags of settled messages, if they are those of their deliveries, as far as known."""
    of, seq = moves["of"], moves["seq"]
    given = np.flatnonzero(moves["op"] == Op.DELIVERED)
    nth = np.full(len(of), -1, np.int64)
    order = given[np.argsort(of[given], kind="stable")]
    channels, begins, counts = np.unique(of[order], return_index=True, return_counts=True)
    before = np.array([reasons.given.get(one, 0) for one in channels.tolist()], np.int64)
    nth[order] = np.arange(1, len(order) + 1) + np.repeat(before - begins, counts)
    for one in passages:
        nth[one.ended] = nth[one.delivered[one.nth]]
        places = seq[one.held].tolist()
        nth[one.held] = [reasons.nth.get((one.queue.number, place), -1) for place in places]
    tagged = np.flatnonzero((moves["op"] == Op.SETTLED) & (nth >= 0))
    settling, at, inverse = np.unique(of[tagged], return_index=True, return_inverse=True)
    tags = moves["detail"][tagged]
    ahead = tags - nth[tagged]
    by_channel = dict(zip(settling.tolist(), ahead[at].tolist(), strict=True))
    if (
        (tags < 0).any()  # beyond 2^63
        or not np.array_equal(ahead, ahead[at][inverse])
        or any(reasons.ahead.get(channel, one) != one for channel, one in by_channel.items())
        or not reasons.closed.isdisjoint(channels.tolist())
    ):
        return False
    order = np.argsort(inverse, kind="stable")
    known = np.array([reasons.done.get((one, False), 0) for one in settling.tolist()], np.int64)
    done = _done(inverse[order], moves["position"][tagged][order], nth[tagged][order], known)
    if done is None:
        return False
    reasons.done |= {
        (one, False): to for one, to in zip(settling.tolist(), done, strict=True) if to
    }
    reasons.ahead |= by_channel
    reasons.given |= zip(channels.tolist(), (before + counts).tolist(), strict=True)
    for one in passages:
        number = one.queue.number
        for place in seq[one.held].tolist():
            reasons.nth.pop((number, place), None)
        rows = np.delete(one.delivered, one.nth)
        for place, ordinal in zip(seq[rows].tolist(), nth[rows].tolist(), strict=True):
            reasons.nth[number, place] = ordinal
    return True


def _done(channel: Ints, position: Ints, nth: Ints, known: Ints) -> list[int] | None:
    """Return up to which delivery each channel settled all; None: an ack of several left one out.

    The columns are those of settled messages, in the order of channels.
    """
    span = 1 + max(int(one.max(initial=0)) for one in (nth, known))
    several = np.zeros(len(nth), bool)
    several[1:] = (np.diff(channel) == 0) & (np.diff(position) == 0)
    base = channel * span
    highest = np.maximum.accumulate(np.where(several, nth, 0) + base)
    before = np.append(0, highest[:-1]) - base
    if (nth <= np.maximum(before, known[channel])).any():
        return None
    ends = np.flatnonzero(np.diff(channel, append=-1))
    done: list[int] = np.maximum(highest[ends] - base[ends], known).tolist()
    return done


def _pass(one: _Passage, moves: Columns) -> None:
    """Leave in a queue what its moves leave there."""
    queue, first, seq, of = one.queue, one.first, moves["seq"], moves["of"]
    waited = len(one.delivered) - len(one.came)
    messages = [queue.ready.pop(place) for place in range(first, first + waited)]
    for place in seq[one.held].tolist():
        del queue.held[place]
    open_ = np.delete(np.arange(len(one.delivered)), one.nth)
    messages = [messages[at] for at in open_[open_ < waited].tolist()]
    messages += _messages(moves, one.came[open_[open_ >= waited] - waited])
    rows = one.delivered[open_]
    holders = zip(messages, of[rows].tolist(), strict=True)
    queue.held.update(zip(seq[rows].tolist(), holders, strict=True))
    queue.next_seq += len(one.came) + len(one.stay)
    queue.ready.update(zip(seq[one.stay].tolist(), _messages(moves, one.stay), strict=True))
    queue.order = sorted(queue.ready)


def _messages(moves: Columns, entered: Ints) -> list[Message]:
    published = _facts(moves, moves["source"][entered])
    return [
        Message(content, flag, redelivered=False, body=body)
        for (content, flag), (body, _) in zip(_facts(moves, entered), published, strict=True)
    ]


def _facts(moves: Columns, rows: Ints) -> list[tuple[int, bool]]:
    """Return the hash that each of these moves states, and its flag."""
    hashes = moves["detail"][rows].view(np.uint64)
    return list(zip(hashes.tolist(), moves["flag"][rows].tolist(), strict=True))
