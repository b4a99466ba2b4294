"""Texts of refusals for clients: RabbitMQ's words, because libraries match on them."""

from typing import NamedTuple

from broker.machine import commands as c
from broker.machine.commands import Value

NOT_FOUND = 404
ACCESS_REFUSED = 403
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
COMMAND_INVALID = 503
CHANNEL_FAULT = 504
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541
NO_ROUTE = 312
CONTENT_TOO_LARGE = 311


class Refusal(NamedTuple):
    """Why a command is not executed: an AMQP reply code, and whether it ends the connection."""

    code: int
    text: str
    hard: bool = False


_NAMES = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE", ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND", RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED", COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_FAULT: "CHANNEL_ERROR", NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED", INTERNAL_ERROR: "INTERNAL_ERROR",
}  # fmt: skip


# AMQP class and method of each kind, for the close method that reports a refusal.
METHODS: dict[int, tuple[int, int]] = {
    c.CHANNEL_OPEN: (20, 10),
    c.CHANNEL_CLOSE: (20, 40),
    c.EXCHANGE_DECLARE: (40, 10),
    c.EXCHANGE_DELETE: (40, 20),
    c.EXCHANGE_BIND: (40, 30),
    c.EXCHANGE_UNBIND: (40, 40),
    c.QUEUE_DECLARE: (50, 10),
    c.QUEUE_BIND: (50, 20),
    c.QUEUE_PURGE: (50, 30),
    c.QUEUE_DELETE: (50, 40),
    c.QUEUE_UNBIND: (50, 50),
    c.QOS: (60, 10),
    c.CONSUME: (60, 20),
    c.CANCEL: (60, 30),
    c.PUBLISH: (60, 40),
    c.BODY_PART: (60, 40),
    c.GET: (60, 70),
    c.ACK: (60, 80),
    c.RECOVER: (60, 110),
    c.NACK: (60, 120),
    c.TX_COMMIT: (90, 20),
}


def _refused(code: int, why: str, hard: bool = False) -> Refusal:
    """Every text begins with the name of its code."""
    return Refusal(code, f"{_NAMES[code]} - {why}", hard)


def precondition_failed(why: str) -> Refusal:
    return _refused(PRECONDITION_FAILED, why)


def no_exchange(name: str, vhost: str) -> Refusal:
    return _refused(NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")


def no_queue(name: str, vhost: str) -> Refusal:
    return _refused(NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")


def no_vhost(name: str) -> Refusal:
    return _refused(NOT_ALLOWED, f"vhost {name} not found", True)


def too_many_queues(name: str, vhost: str, limit: int) -> Refusal:
    return precondition_failed(
        f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
    )


def too_many_keys(name: str, more: int, taken: int, limit: int) -> Refusal:
    return precondition_failed(
        f"cannot declare queue '{name}': it would remember {more} keys, and "
        f"the queues of this cluster {taken} of at most {limit} already: give it a smaller "
        "x-cache-size, or delete a queue that deduplicates"
    )


def default_exchange() -> Refusal:
    return _refused(ACCESS_REFUSED, "operation not permitted on the default exchange")


def system_exchange(name: str, vhost: str) -> Refusal:
    return _refused(
        ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{vhost}' not allowed"
    )


def reserved_name(kind: str, name: str) -> Refusal:
    return _refused(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def unknown_exchange_type(name: str) -> Refusal:
    return _refused(COMMAND_INVALID, f"unknown exchange type '{name}'", True)


def internal_exchange(name: str, vhost: str) -> Refusal:
    return _refused(
        ACCESS_REFUSED, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'"
    )


def locked(name: str, vhost: str) -> Refusal:
    return _refused(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost "
        f"'{vhost}'. It could be originally declared on another connection or the exclusive "
        "property value does not match that of the original declaration.",
    )


def exclusive_use(name: str, vhost: str) -> Refusal:
    return _refused(ACCESS_REFUSED, f"queue '{name}' in vhost '{vhost}' in exclusive use")


def in_use(kind: str, name: str, vhost: str) -> Refusal:
    return precondition_failed(f"{kind} '{name}' in vhost '{vhost}' in use")


def not_empty(name: str, vhost: str) -> Refusal:
    return precondition_failed(f"queue '{name}' in vhost '{vhost}' not empty")


def inequivalent(
    arg: str, kind: str, name: str, vhost: str, received: Value, current: Value
) -> Refusal:
    return precondition_failed(
        f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {_shown(received)} but current is {_shown(current)}"
    )


def inequivalent_table(
    arg: str, kind: str, name: str, vhost: str, received: Value, current: Value
) -> Refusal:
    return precondition_failed(
        f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {_typed(received)} but current is {_typed(current)}"
    )


def invalid_argument(arg: str, kind: str, name: str, vhost: str, why: str) -> Refusal:
    return precondition_failed(f"invalid arg '{arg}' for {kind} '{name}' in vhost '{vhost}': {why}")


def invalid_type(arg: str, kind: str, name: str, vhost: str, value: Value) -> Refusal:
    return precondition_failed(
        f"invalid type '{type_of(value)}' for arg '{arg}' in {kind} '{name}' in vhost '{vhost}'"
    )


def unknown_tag(tag: int) -> Refusal:
    return precondition_failed(f"unknown delivery tag {tag}")


def too_much(what: str, asked: int, limit: int, instead: str) -> Refusal:
    """A bound of `broker.machine.limits`: the same at all members, changed by no option."""
    return precondition_failed(f"{what}: {asked}, the limit is {limit}; {instead}")


def gave_way(size: int, limit: int) -> Refusal:
    return _refused(
        CONTENT_TOO_LARGE,
        f"message bodies that are under way from all clients have more than "
        f"{limit} bytes; this one, of which {size} have come, waited longest for its next part "
        "and gave way: publish it again",
    )


def invalid_expiration(text: bytes) -> Refusal:
    shown = text.decode("ascii", "backslashreplace")
    why = _why_no_number(shown)
    return precondition_failed(f"invalid expiration '{shown}': {why}")


def _why_no_number(text: str) -> str:
    digits = text.removeprefix("-")
    behind = digits.lstrip("0123456789")
    if len(behind) == len(digits):
        return "no_integer"
    if behind:
        return f'{{leftover_string,"{behind}"}}'
    return f"{{{'value_too_large' if digits == text else 'value_negative'},{text}}}"


def invalid_header(name: str, kind: str) -> Refusal:
    return precondition_failed(
        "invalid message: "
        f'{{unacceptable_type_in_header,"{name}",{kind}}}; an array of routing keys is needed',
    )


def _of_type(kind: str) -> str:
    return f"of queue type rabbit_{kind}_queue"


def not_of_type(arg: str, name: str, vhost: str, kind: str) -> Refusal:
    """An argument of queues of another type."""
    return precondition_failed(
        f"invalid arg '{arg}' for queue '{name}' in vhost '{vhost}' {_of_type(kind)}"
    )


def invalid_property(prop: str, name: str, vhost: str) -> Refusal:
    return precondition_failed(f"invalid property '{prop}' for queue '{name}' in vhost '{vhost}'")


def no_server_named(kind: str) -> Refusal:
    return precondition_failed(f"Cannot declare a server-named queue for type rabbit_{kind}_queue")


def needs_prefetch(name: str, vhost: str) -> Refusal:
    return precondition_failed(
        f"consumer prefetch count is not set for 'queue '{name}' in vhost '{vhost}''"
    )


def not_on_stream(what: str, name: str, vhost: str, behind: str = "") -> Refusal:
    """`what` comes before the name of the queue, or `behind` it."""
    words = (what, f"queue '{name}' in vhost '{vhost}'", behind)
    return not_implemented(" ".join(word for word in words if word))


def reused_tag(tag: str) -> Refusal:
    return _refused(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", True)


def not_implemented(what: str) -> Refusal:
    return _refused(NOT_IMPLEMENTED, f"{what}", True)


def poisonous() -> Refusal:
    return _refused(
        INTERNAL_ERROR,
        "a command like this one stopped a majority of the cluster's members; "
        "it is refused until the whole cluster runs a release that can execute it",
        True,
    )


def second_open() -> Refusal:
    return _refused(CHANNEL_FAULT, "second 'channel.open' seen", True)


def _shown(value: Value) -> str:
    return "none" if value is None else f"'{plain(value)}'"


def plain(value: Value) -> str:
    """A value in words; the same everywhere, whatever a client sent."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


def type_of(value: Value) -> str:
    """RabbitMQ's name of the type."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str | bytes):
        return "longstr"
    return "table" if isinstance(value, dict) else "array"


def _typed(value: Value) -> str:
    if value is None:
        return "none"
    kind = type_of(value)
    if kind in ("table", "array"):
        return f"a value of type '{kind}'"
    shown = value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else value
    return f"the value {_shown(shown)} of type '{kind}'"
