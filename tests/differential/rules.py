"""Our broker's intended differences from RabbitMQ, each with the documented words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.differential.program import Step


class Difference(NamedTuple):
    """The lines of one step at each side that the other lacks, and the step."""

    step: Step
    ours: list[str]
    theirs: list[str]
    in_tx: bool = False
    """Whether its channel has a transaction."""
    before: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"  at {self.step}", *(f"    ours    {one}" for one in self.ours),
             *(f"    theirs  {one}" for one in self.theirs)]
        )  # fmt: skip


class Rule(NamedTuple):
    """An intended difference.  It ends the program, as the brokers' states may differ after it; the
    program continues if only the words of a refusal differ."""

    name: str
    words: str
    """In docs/COMPATIBILITY.md."""
    holds: Callable[[Difference], bool]
    goes_on: bool = False


def says_more(seen: Difference) -> bool:
    """Both close alike, and ours has RabbitMQ's words, and more of them."""
    pairs = [(CLOSE.fullmatch(one), CLOSE.fullmatch(other)) for one, other in
             zip(seen.ours, seen.theirs, strict=False) if one != other]  # fmt: skip
    return len(seen.ours) == len(seen.theirs) and all(
        ours and theirs and ours[1] == theirs[1] and ours[3] == theirs[3]
        and ours[2].replace("\\", "").startswith(theirs[2].replace("\\", ""))
        for ours, theirs in pairs
    )  # fmt: skip


CLOSE = re.compile(r"(.*\.close \(\d+, )['\"](.*)['\"](, \d+, \d+\))")


def is_close(lines: list[str], *codes: int) -> bool:
    return any(f".close ({code}," in line for line in lines for code in codes)


def of_reject(seen: Difference) -> bool:
    """Equal except for the number of the method."""
    of_nack = [line.replace("60, 90)", "60, 120)") for line in seen.theirs]
    return seen.step.args[:1] == ("basic.reject",) and seen.ours == of_nack


def bare(lines: list[str], left_out: str) -> list[str]:
    """Without this, and without quotes, as each side's are within other ones."""
    return [re.sub(left_out, "", re.sub(r"[\\\"']", "", line)).rstrip() for line in lines]


def in_python(seen: Difference) -> bool:
    """Equal except for how the value at fault is written."""
    value = r"(\(value|received ).*(?=, \d+, \d+\))"
    alike = bare(seen.ours, value) == bare(seen.theirs, value)
    return alike and "[" in "".join(seen.theirs) and is_close(seen.ours, 406)


def counts_from_the_first(seen: Difference) -> bool:
    """To a consumer without acknowledgement."""
    count = r" headers=\[x-delivery-count=l0\]|, x-delivery-count=l0|x-delivery-count=l0, "
    return "deliver" in str(seen.theirs) and bare(seen.ours, count) == bare(seen.theirs, "$")


def same_to_others(seen: Difference) -> bool:
    """The same messages, to other consumers."""
    one, other = (sorted(line.partition(": ")[2] for line in lines)
                  for lines in (seen.ours, seen.theirs))  # fmt: skip
    return one == other and all(line.startswith("deliver") for line in one)


def has_had(seen: Difference, *words: str) -> bool:
    """Whether earlier steps have all of these words."""
    return all(word in str(seen.before) for word in words)


def user_first(seen: Difference) -> bool:
    return (
        seen.step.what == "publish"
        and any("406" in line and "user_id property" in line for line in seen.ours)
        and is_close(seen.theirs, 403, 404, 540)
    )


def counts_more(seen: Difference) -> bool:
    """The same message, and ours counts some behind it that have expired."""
    one, other = (re.sub(r", \d+ left$", "", " ".join(lines)) for lines in (seen.ours, seen.theirs))
    return one == other and ", " in seen.ours[0]


def kept_in_a_priority_queue(seen: Difference) -> bool:
    """RabbitMQ looks for what has expired when a message comes to an empty queue.  One that expires
    at once and comes to a priority queue that is not empty stays, even as the next to be delivered:
    counted there, and not yet in the queue for its dead letters (seed 700893)."""
    counts = [re.fullmatch(r".*queue\.declare-ok \('([^']*)', (\d+), \d+\)", "".join(lines))
              for lines in (seen.ours, seen.theirs)]  # fmt: skip
    ours, theirs = counts
    if ours is None or theirs is None or not has_had(seen, "'expiration'"):
        return False
    declared = {step.args[0]: str(step.args[-1]) for step in seen.before
                if step.what == "queue.declare"}  # fmt: skip
    queues = {name: given for name, given in declared.items() if "x-max-priority" in given}
    if ours[1] in queues:
        return int(ours[2]) < int(theirs[2])
    letters = any("x-dead-letter-exchange" in given for given in queues.values())
    return letters and int(ours[2]) > int(theirs[2])


RULES = (
    Rule("values in Python", "they show as Python does, not Erlang", in_python, goes_on=True),
    Rule(
        "counted from the first", "(there not to consumers without acknowledgement)",
        counts_from_the_first, goes_on=True,
    ),
    Rule("says more", "and often add what is needed", says_more, goes_on=True),
    Rule(
        "reject is a nack", "a refusal has class and method of `basic.nack`", of_reject,
        goes_on=True,
    ),
    Rule("counts what expires", "and some 10 ms later", counts_more, goes_on=True),
    Rule("the user before the exchange", "406, before the exchange is looked for", user_first),
    Rule(
        "unbinding a locked queue", "405 at another connection's exclusive queue, bound or not",
        lambda seen: seen.step.what == "queue.unbind" and is_close(seen.ours, 405)
        and "unbind-ok" in seen.theirs[0],
    ),
    Rule(
        "recovered by consumer", "before any of them is delivered (RabbitMQ: consumer by consumer)",
        lambda seen: seen.step.what.startswith("basic.recover") and same_to_others(seen),
    ),
    Rule(
        "the next active one", "(RabbitMQ: of those with the highest `x-priority`)",
        lambda seen: same_to_others(seen)
        and has_had(seen, "'x-single-active-consumer': True", "x-priority"),
    ),
    Rule(
        "shared credit goes round", "with it for the channel, whose queues take turns",
        lambda seen: any(step.what == "basic.qos" and step.args[2] for step in seen.before)
        and len(seen.ours) == len(seen.theirs)
        and all(": deliver" in line for line in (*seen.ours, *seen.theirs)),
    ),
    Rule(
        "both prefetches hold", "also where one without `global` follows (RabbitMQ forgets",
        lambda seen: seen.step.what == "basic.qos" and not seen.step.args[2]
        and any(step.what == "basic.qos" and step.args[2] for step in seen.before)
        and not any("deliver" in line for line in seen.ours),
    ),
    Rule(
        "a consumer waits for it", "A message that a waiting consumer takes at once is not refused",
        lambda seen: seen.step.what == "publish" and any("deliver" in one for one in seen.ours)
        and not any("deliver" in one for one in seen.theirs),
    ),
    Rule(
        "expired with a priority",
        "(RabbitMQ keeps, counts and delivers some of them in such a queue)",
        lambda seen: "priority=" in str(seen.theirs) and "expiration=" in str(seen.theirs)
        and "expiration=" not in str(seen.ours),
    ),
    Rule(
        "kept with a priority",
        "(RabbitMQ keeps, counts and delivers some of them in such a queue)",
        kept_in_a_priority_queue,
    ),
    Rule(
        "headers in a stream", "RabbitMQ's streams lose those that are tables or arrays",
        lambda seen: "x-stream-offset=" in str(seen.theirs)
        and bare(seen.ours, " headers=.*") == bare(seen.theirs, " headers=.*"), goes_on=True,
    ),
    Rule(
        "a time to live for what waits",
        "A policy's value also applies to messages that already wait",
        lambda seen: has_had(seen, "'message-ttl'") and len(seen.ours) <= len(seen.theirs)
        and any(word in str(seen.theirs) for word in ("deliver", "get-ok", "declare-ok", "left")),
    ),
    Rule(
        "a type that fails there", "Others 406. A queue is classic by default",
        lambda seen: seen.step.what == "queue.declare" and is_close(seen.ours, 406)
        and is_close(seen.theirs, 541),
    ),
    Rule(
        "an offset that fails there", "An invalid offset: 406",
        lambda seen: "invalid_stream_offset_arg" in str(seen.ours) and is_close(seen.theirs, 541),
    ),
    Rule(
        "longer times", "up to 2^53 (RabbitMQ: 2^32 - 1)",
        lambda seen: any("value_too_large" in line for line in seen.theirs),
    ),
    Rule(
        "told at the commit", "A publish that is refused is reported here",
        lambda seen: seen.in_tx and seen.step.what == "publish" and not seen.ours,
    ),
    Rule(
        "replies that are ignored", "| `basic.cancel-ok` | ignored |",
        lambda seen: seen.step.what in ("basic.cancel-ok", "channel.flow-ok") and not seen.ours,
    ),
    Rule(
        "wrong side or phase", "a method from the wrong side, or in the wrong phase: 503",
        lambda seen: seen.step.what.endswith(("-ok", "connection.open"))
        and is_close(seen.ours, 503) and is_close(seen.theirs, 503, 504),
    ),
)  # fmt: skip


def rule_of(seen: Difference) -> Rule | None:
    return next((rule for rule in RULES if rule.holds(seen)), None)
