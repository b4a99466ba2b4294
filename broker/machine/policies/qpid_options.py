"""Queue options of Qpid's C++ broker, translated into the arguments of this broker.

They are read when a queue is declared. The queue keeps, shows and compares the argument that an
option stands for. So there is only one way in which a queue is limited, and clients of Qpid and of
RabbitMQ may declare the same queue. An option that would mean something else here, or that promises
something and would do nothing, is refused with advice: a client must not believe in an option that
is silently ignored. docs/COMPATIBILITY.md lists them all.
"""

from typing import NamedTuple

from broker.machine.commands import Table, Value

PREFIX = "qpid."
POLICY_TYPE = "qpid.policy_type"
PRIORITIES = "qpid.priorities"
AUTO_DELETE_TIMEOUT = "qpid.auto_delete_timeout"
MAX_COUNT, MAX_SIZE = "qpid.max_count", "qpid.max_size"
LIMITS = {MAX_COUNT: "x-max-length", MAX_SIZE: "x-max-length-bytes"}
_OVERFLOW = "x-overflow"
_OVERFLOWS = {
    "reject": "reject-publish",
    "ring": "drop-head",
    "ring_strict": "drop-head",
    "flow_to_disk": None,
}
"""Limits count waiting messages, so `ring` never drops a message that a consumer holds; preventing
that is the only purpose of `ring_strict`. Messages beyond memory go to disk in every queue."""
_LEVELS_MIN, _LEVELS_MAX = 9, 256
"""This many levels are served by the priority in the message. Qpid maps a message's priority to
fewer levels by another rule than `x-max-priority` does."""
_SECONDS_MAX = (1 << 53) // 1000
LAST_VALUE_KEY = "qpid.last_value_queue_key"
"""The header whose value is the key of a message. This broker has no other word for it, so it is
kept by this name."""
_OLD_LAST_VALUES = ("qpid.last_value_queue", "qpid.last_value_queue_no_browse")
_OLD_KEY = "qpid.LVQ_key"
"""The header for queues that do not name one. Qpid itself has ignored `no_browse` since version
0.18: a newer message always takes a place at the end, so no browsing client misses it."""
BROWSE_ONLY = "qpid.browse-only"
"""No consumer takes messages from this queue: all of them browse. Also kept by this name."""
GROUP_KEY = "qpid.group_header_key"
SHARED_GROUPS = "qpid.shared_msg_group"
"""Names the header whose value is the group of a message, and lets a consumer keep a group only
while it holds messages of it, which is the only mode of Qpid's C++ broker. Without it a group stays
with its consumer, as in Qpid's Java broker."""
HINTS = (
    "qpid.file_count",
    "qpid.file_size",
    "qpid.max_pages_loaded",
    "qpid.page_factor",
    "qpid.paging",
)
"""How Qpid's broker stores a queue; this broker keeps long queues on disk, without journal
files.
"""
_REPLICATE, _LEVELS = "qpid.replicate", ("none", "configuration", "all")
"""What Qpid keeps of a queue on its backups. Here every queue is on every member, with its
messages, so a client that asks for less gets more."""
_ALERTS = "no events are sent: alert on the metric rabbitmq_queue_messages"
_FLOW = "publishers are slowed for all queues alike: use qpid.max_count or qpid.max_size"
_SEQUENCE = "consumers ask for numbers, by their argument x-queue-numbers"
_SHARES = "levels of priority are served strictly, the highest first"
_TRACE = "messages are not traced"
_NO_NAME = "messages without the header are one group, which has no name"
REFUSED = {
    "qpid.alert_count": _ALERTS,
    "qpid.alert_count_down": _ALERTS,
    "qpid.alert_count_up": _ALERTS,
    "qpid.alert_repeat_gap": _ALERTS,
    "qpid.alert_size": _ALERTS,
    "qpid.alert_size_down": _ALERTS,
    "qpid.alert_size_up": _ALERTS,
    "qpid.default-message-group": _NO_NAME,
    "qpid.default_msg_group": _NO_NAME,
    "qpid.fairshare": _SHARES,
    "qpid.filter": "use a headers exchange",
    "qpid.flow_resume_count": _FLOW,
    "qpid.flow_resume_size": _FLOW,
    "qpid.flow_stop_count": _FLOW,
    "qpid.flow_stop_size": _FLOW,
    "qpid.lifetime-policy": "declare the queue auto-delete, or give it x-expires",
    "qpid.msg_sequence": _SEQUENCE,
    "qpid.persist_last_node": "declare the queue durable, and publish persistent messages",
    "qpid.queue_msg_group_timestamp": "groups have no times",
    "qpid.queue_msg_sequence": _SEQUENCE,
    "qpid.trace.exclude": _TRACE,
    "qpid.trace.id": _TRACE,
}
NAMES = (
    *LIMITS, POLICY_TYPE, PRIORITIES, AUTO_DELETE_TIMEOUT, LAST_VALUE_KEY, *_OLD_LAST_VALUES,
    BROWSE_ONLY, GROUP_KEY, SHARED_GROUPS, *HINTS, _REPLICATE, *REFUSED,
)  # fmt: skip


class Fault(NamedTuple):
    """The fault of an option."""

    option: str
    why: str


class InOurWords(NamedTuple):
    """The arguments that a declaration's options stand for."""

    arguments: Table
    auto_delete: bool


def has_options(arguments: Table) -> bool:
    return any(arg.startswith(PREFIX) for arg in arguments)


def in_our_words(given: Table, *, auto_delete: bool, exclusive: bool) -> InOurWords | Fault:
    """The declaration without Qpid's names."""
    arguments = {arg: value for arg, value in given.items() if not arg.startswith(PREFIX)}
    for option, value in given.items():
        if option.startswith(PREFIX):
            why = _fault_of(option, value, exclusive=exclusive)
            if why is not None:
                return Fault(option, why)
    meant = _limits(given)
    levels, seconds = given.get(PRIORITIES), given.get(AUTO_DELETE_TIMEOUT)
    if isinstance(levels, int):
        meant["x-max-priority"] = (PRIORITIES, levels - 1)
    if isinstance(seconds, int) and seconds:
        meant["x-expires"] = (AUTO_DELETE_TIMEOUT, seconds * 1000)
        auto_delete = False  # it would be deleted with its last consumer, at once
    header = next((_OLD_KEY for option in _OLD_LAST_VALUES if given.get(option)), None)
    if header is not None:
        meant[LAST_VALUE_KEY] = (_OLD_LAST_VALUES[0], header)
    if LAST_VALUE_KEY in given:
        meant[LAST_VALUE_KEY] = (LAST_VALUE_KEY, given[LAST_VALUE_KEY])
    if GROUP_KEY in given:
        meant[GROUP_KEY] = (GROUP_KEY, given[GROUP_KEY])
        if given.get(SHARED_GROUPS):
            meant[SHARED_GROUPS] = (SHARED_GROUPS, True)
    elif given.get(SHARED_GROUPS):
        return Fault(SHARED_GROUPS, f"{GROUP_KEY} says by which header, and is missing")
    if given.get(BROWSE_ONLY):
        meant[BROWSE_ONLY] = (BROWSE_ONLY, True)
    for arg, (option, value) in meant.items():
        if arg in arguments:
            return Fault(option, f"it stands for {arg}, which is given too")
        arguments[arg] = value
    return InOurWords(arguments, auto_delete)


def _limits(given: Table) -> dict[str, tuple[str, Value]]:
    """The arguments that limit the queue, each with the option that sets it. Qpid's broker rejects
    unless told otherwise."""
    overflow = _OVERFLOWS[str(given.get(POLICY_TYPE, "reject"))]
    if overflow is None:
        return {}
    meant: dict[str, tuple[str, Value]] = {
        arg: (option, given[option]) for option, arg in LIMITS.items() if given.get(option)
    }  # 0: no limit, as in Qpid
    if POLICY_TYPE in given or (meant and _OVERFLOW not in given):
        meant[_OVERFLOW] = (POLICY_TYPE, overflow)
    return meant


def _fault_of(option: str, value: Value, *, exclusive: bool) -> str | None:
    if option in HINTS:
        return None
    if option in LIMITS:
        return _fault_of_number(value, 0, 1 << 53)
    if option in (LAST_VALUE_KEY, GROUP_KEY):
        return fault_of_key(value)
    if option in (*_OLD_LAST_VALUES, BROWSE_ONLY, SHARED_GROUPS):
        return _fault_of_number(int(value) if isinstance(value, bool) else value, 0, 1)
    if option == POLICY_TYPE:
        return _fault_of_policy_type(value)
    if option == PRIORITIES:
        fewer = type(value) is int and 0 <= value < _LEVELS_MIN
        if fewer:
            return (
                f"Qpid's rule for fewer than {_LEVELS_MIN} levels is not there: use x-max-priority"
            )
        return _fault_of_number(value, _LEVELS_MIN, _LEVELS_MAX)
    if option == AUTO_DELETE_TIMEOUT:
        if exclusive and value:
            return "an exclusive queue goes with its connection: declare it without exclusive"
        return _fault_of_number(value, 0, _SECONDS_MAX)
    if option == _REPLICATE:
        words = ", ".join(_LEVELS)
        return None if value in _LEVELS else f"invalid replication value {value!r}: one of {words}"
    why = REFUSED.get(option)
    return "not known to this broker" if why is None else f"not supported by this broker: {why}"


def _fault_of_policy_type(value: Value) -> str | None:
    if isinstance(value, str) and value in _OVERFLOWS:
        return None
    return f"unsupported policy {value!r}: one of {', '.join(_OVERFLOWS)} is needed"


def fault_of_key(value: Value) -> str | None:
    """The fault of a header's name."""
    if type(value) is not str:
        return "unacceptable type: the name of a header is needed"
    if not 0 < len(value.encode()) <= 255:
        return "unacceptable value: the name of a header, of 1 to 255 bytes, is needed"
    return None


def _fault_of_number(value: Value, low: int, high: int) -> str | None:
    if type(value) is not int or not low <= value <= high:
        return f"unacceptable value: a whole number from {low} to {high} is needed"
    return None
