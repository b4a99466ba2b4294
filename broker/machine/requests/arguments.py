"""Arguments of declarations: which are honoured, which have no effect, which are refused.

Unknown arguments are accepted, as in RabbitMQ: client libraries send arguments meant for other
brokers or plugins. An argument that promises something about messages that does not hold here is
refused: a client must not believe in an argument that is silently ignored. docs/COMPATIBILITY.md
lists them all.
"""

from broker.machine.commands import Table, Value
from broker.machine.digest import canonical, item_hash
from broker.machine.limits import (
    FILTER_VALUES_MAX,
    WINDOW_KEYS_DEFAULT,
    WINDOW_KEYS_MAX,
    WINDOW_KEYS_TOTAL_MAX,
)
from broker.machine.policies.choice import effective_definition
from broker.machine.policies.qpid_options import (
    BROWSE_ONLY,
    GROUP_KEY,
    LAST_VALUE_KEY,
    SHARED_GROUPS,
    fault_of_key,
)
from broker.machine.policies.settings import MAX_AGE, SEGMENT_BYTES_MAX, age_us
from broker.machine.requests.refusals import (
    Refusal,
    inequivalent,
    inequivalent_table,
    invalid_argument,
    invalid_type,
    not_implemented,
    not_of_type,
    plain,
    precondition_failed,
    too_many_keys,
    type_of,
)
from broker.machine.state import NO_TTL, STREAM, Queue, State, Window
from broker.waiting.filter_column import NONE, entry_of
from broker.waiting.groups import Groups
from broker.waiting.last_values import LastValues

_HINTS = (
    "x-queue-mode",
    "x-queue-version",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-quorum-initial-group-size",
)
DEDUPLICATION_ARGUMENT = "x-message-deduplication"
_CACHE_SIZE, _CACHE_TTL = "x-cache-size", "x-cache-ttl"
_AGE, _SEGMENT = "x-max-age", "x-stream-max-segment-size-bytes"
_OF_STREAMS = (_AGE, _SEGMENT, "x-stream-filter-size-bytes", "x-initial-cluster-size")
"""Arguments of streams only."""
_NOT_OF_STREAMS = (
    "x-max-length", "x-message-ttl", "x-expires", "x-max-priority", "x-delivery-limit",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-overflow",
    "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-quorum-initial-group-size",
    "x-single-active-consumer", "x-consumer-timeout",
)  # fmt: skip
"""As in RabbitMQ."""
_NO_STREAM = DEDUPLICATION_ARGUMENT, LAST_VALUE_KEY, BROWSE_ONLY, GROUP_KEY, SHARED_GROUPS
"""A stream has no window, keeps all values, and no consumer takes from it anyway."""
_NOT_OF_QUORUM = ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator")
"""As in RabbitMQ."""
_NUMBER_MAX = 1 << 53
_PRIORITY_MAX = 255
_NUMBERS = {
    "x-max-length": (0, _NUMBER_MAX),
    "x-max-length-bytes": (0, _NUMBER_MAX),
    "x-message-ttl": (0, _NUMBER_MAX),
    "x-expires": (1, _NUMBER_MAX),
    "x-max-priority": (0, _PRIORITY_MAX),
    "x-delivery-limit": (0, _NUMBER_MAX),
}
_OF_WINDOW = {_CACHE_SIZE: (1, WINDOW_KEYS_MAX), _CACHE_TTL: (1, _NUMBER_MAX)}
"""Arguments of a queue that deduplicates; in other queues they count as unknown."""
_EXCHANGE, _KEY = _NAMES = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_STRATEGY = "x-dead-letter-strategy"
_TYPE = "x-queue-type"
_STRATEGIES = ("at-most-once", "at-least-once")
_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
_COMPARED = (
    *_HINTS, *_NUMBERS, *_NAMES, "x-overflow", "x-queue-type", "x-single-active-consumer",
    DEDUPLICATION_ARGUMENT, _AGE, _SEGMENT, _STRATEGY, LAST_VALUE_KEY, BROWSE_ONLY, GROUP_KEY,
    SHARED_GROUPS,
)  # fmt: skip
_ORDER = {
    arg: place
    for place, arg in enumerate((
        "x-expires", "x-message-ttl", *_NAMES, _STRATEGY, "x-max-length", "x-max-length-bytes",
        "x-max-priority", "x-overflow", "x-queue-mode", "x-queue-version",
        "x-single-active-consumer", _TYPE, "x-quorum-initial-group-size", _AGE, _SEGMENT,
        "x-initial-cluster-size", "x-queue-leader-locator",
    ))
}  # fmt: skip
"""The order in which RabbitMQ checks arguments: of several wrong ones it names the first."""
QUEUE_ARGUMENTS = tuple(
    dict.fromkeys((*_COMPARED, *_OF_STREAMS, *_OF_WINDOW, "x-consumer-timeout"))
)
"""The arguments of a declaration that have a meaning here, without Qpid's options."""
_SAYS_NOTHING = (
    ("x-queue-type", "classic"),
    (DEDUPLICATION_ARGUMENT, False),
    (_STRATEGY, "at-most-once"),
)
FILTER, MATCH_UNFILTERED = _FILTERS = ("x-stream-filter", "x-stream-match-unfiltered")
"""A value or a list of values, and whether to send messages without one as well."""
_FILTER_BYTES = 16, 255
"""The size of RabbitMQ's Bloom filters, which do not exist here."""
_ALTERNATE = "alternate-exchange"
NO_CONSUME = "x-filter-no-consume"
"""The consumer argument for browsing of Qpid's Java broker and its clients."""
_NOT_OF_BROWSERS = {
    "x-filter-auto-close": "cancel when nothing comes any more",
    "x-filter-jms-selector": "choose at the client",
}
_CONSUME_STREAMS = ("x-stream-offset", *_FILTERS)
"""Arguments of consumers of streams only."""
NOT_HONOURED = "not supported by this broker"
NOT_BROWSED = "a queue with priorities cannot be browsed: what comes would be sent out of order"
CLASSIC, QUORUM, _ = QUEUE_TYPES = ("classic", "quorum", STREAM)
_MODES = ("default", "lazy")
_VERSIONS = (1, 2)
_LOCATORS = ("client-local", "balanced", "random", "least-leaders")


def check_queue(name: str, vhost: str, arguments: Table) -> Refusal | None:
    kind = queue_type(arguments)
    foreign = _foreign_to(kind) + (_NO_STREAM if kind == STREAM else ())
    if type(arguments.get(_EXCHANGE, "")) is not str:
        return invalid_type(_EXCHANGE, "queue", name, vhost, arguments[_EXCHANGE])
    fault = _fault_of(_TYPE, arguments.get(_TYPE, CLASSIC))
    if fault is not None:
        return invalid_argument(_TYPE, "queue", name, vhost, fault)
    for arg in sorted(arguments.keys() - set(foreign), key=_place):
        value = arguments[arg]
        why = _fault_of(arg, value)
        if why is None and arg in _OF_WINDOW and deduplicates(arguments):
            why = _fault_of_number(value, *_OF_WINDOW[arg])
        if why is None and arg == _KEY and _EXCHANGE not in arguments:
            why = "routing_key_but_no_dlx_defined"
        if why is not None:
            return invalid_argument(arg, "queue", name, vhost, why)
    for arg in arguments:
        if arg in foreign:
            return not_of_type(arg, name, vhost, kind)
    for special in (LAST_VALUE_KEY, GROUP_KEY):
        for arg in ("x-max-priority", DEDUPLICATION_ARGUMENT, GROUP_KEY):
            if special in arguments and arg != special and arguments.get(arg, False) is not False:
                why = f"a queue cannot have both this and {arg}"
                return invalid_argument(special, "queue", name, vhost, why)
    if BROWSE_ONLY in arguments and "x-max-priority" in arguments:
        return invalid_argument(BROWSE_ONLY, "queue", name, vhost, NOT_BROWSED)
    return None


def _place(arg: str) -> tuple[int, str]:
    return _ORDER.get(arg, len(_ORDER)), arg


def _foreign_to(kind: str) -> tuple[str, ...]:
    """Arguments that RabbitMQ allows on no queue of this type."""
    if kind == QUORUM:
        return _OF_STREAMS + _NOT_OF_QUORUM
    return _NOT_OF_STREAMS if kind == STREAM else _OF_STREAMS


def queue_type(arguments: Table) -> str:
    """The type with which it was declared."""
    kind = arguments.get("x-queue-type")
    return kind if isinstance(kind, str) and kind in QUEUE_TYPES else CLASSIC


def _fault_of(arg: str, value: Value) -> str | None:
    """What is wrong with this queue argument."""
    fault: str | None = None
    if arg in _NUMBERS:
        fault = _fault_of_number(value, *_NUMBERS[arg])
    elif arg in _NAMES:
        if type(value) is not str:
            fault = _unacceptable(value)
        elif len(value.encode()) > 255:
            fault = "longer than 255 bytes"
    elif arg == "x-overflow":
        fault = _fault_of_word(value, _OVERFLOWS, "invalid_overflow")
    elif arg == _AGE:
        fault = None if age_us(value) > 0 else "invalid_max_age"
    elif arg == _SEGMENT:
        fault = _fault_of_number(value, 1, SEGMENT_BYTES_MAX)
    elif arg == "x-stream-filter-size-bytes":
        fault = _fault_of_number(value, *_FILTER_BYTES)
    elif arg == "x-queue-type":
        fault = _fault_of_word(value, QUEUE_TYPES, f"\"unsupported queue type '{plain(value)}'\"")
    elif arg == _STRATEGY:
        fault = _fault_of_word(value, _STRATEGIES, "invalid_dlx_strategy")
    elif arg == "x-consumer-timeout":
        if type(value) is not int or not 1 <= value <= _NUMBER_MAX:
            fault = "unacceptable value: a number of milliseconds above 0 is needed"
    elif arg in ("x-single-active-consumer", DEDUPLICATION_ARGUMENT):
        if type(value) is not bool:
            fault = f"{_unacceptable(value)}; a boolean is needed"
    elif arg in (LAST_VALUE_KEY, GROUP_KEY):
        fault = fault_of_key(value)
    elif arg in (BROWSE_ONLY, SHARED_GROUPS):
        fault = None if value is True else "unacceptable value: true is needed"
    elif arg in _HINTS:
        fault = _fault_of_hint(arg, value)
    return fault


def _fault_of_hint(arg: str, value: Value) -> str | None:
    """What is wrong with an argument that has no effect."""
    if arg == "x-queue-mode":
        return _fault_of_word(value, _MODES, f"\"unsupported queue mode '{plain(value)}'\"")
    if arg == "x-queue-version":
        fault = _fault_of_number(value, 0, _NUMBER_MAX)
        if fault is None and value not in _VERSIONS:
            fault = f"\"unsupported queue version '{plain(value)}'\"; 1 or 2 is needed"
        return fault
    if arg == "x-queue-leader-locator":
        return _fault_of_word(value, _LOCATORS, "invalid_queue_locator_arg")
    if arg == "x-quorum-initial-group-size":
        return _fault_of_number(value, 1, _NUMBER_MAX)
    return None


def _fault_of_number(value: Value, low: int, high: int) -> str | None:
    """The fault of a number, in RabbitMQ's words."""
    if type(value) is not int:
        return f'"expected integer, got {type_of(value)}"'
    if value < low:
        word = "negative" if value < 0 else "zero" if value == 0 else "too_small"
        return f"{{value_{word},{value}}}; from {low} to {high} is needed"
    if value > high:
        word = "max_value_exceeded" if high == _PRIORITY_MAX else "value_too_large"
        return f"{{{word},{value}}}; from {low} to {high} is needed"
    return None


def _fault_of_word(value: Value, words: tuple[str, ...], fault: str) -> str | None:
    """The fault of a value that must be one of some words."""
    if value in words:
        return None
    why = fault if isinstance(value, str) else _unacceptable(value)
    return f"{why}; one of {', '.join(words)} is needed"


def _unacceptable(value: Value) -> str:
    return f"{{unacceptable_type,{type_of(value)}}}"


def deduplicates(arguments: Table) -> bool:
    """Whether a queue with these arguments takes no message twice (queueing/windows.py)."""
    return arguments.get(DEDUPLICATION_ARGUMENT) is True


def window_refusal(state: State, name: str, arguments: Table) -> Refusal | None:
    """Whether all queues together would remember too many keys with one more of these arguments."""
    if not deduplicates(arguments):
        return None
    more = _window_size(arguments)
    if state.window_keys + more <= WINDOW_KEYS_TOTAL_MAX:
        return None
    return too_many_keys(name, more, state.window_keys, WINDOW_KEYS_TOTAL_MAX)


def _window_size(arguments: Table) -> int:
    size = arguments.get(_CACHE_SIZE)
    return size if isinstance(size, int) else WINDOW_KEYS_DEFAULT


def open_window(state: State, queue: Queue) -> None:
    """Give a new queue its empty window, if it deduplicates. The window counts in full at once, so
    that no declaration is accepted that its queue cannot keep."""
    if not deduplicates(queue.arguments):
        return
    size, ttl_ms = _window_size(queue.arguments), queue.arguments.get(_CACHE_TTL)
    ttl_us = ttl_ms * 1000 if isinstance(ttl_ms, int) else NO_TTL
    queue.window, queue.takes_all = Window(item_hash("window", queue.number), size, ttl_us), False
    state.window_keys += size


def keep_last_values(queue: Queue) -> None:
    """Make a new queue keep the newest message of each key, if its arguments say so; settings are
    applied afterwards."""
    header = queue.arguments.get(LAST_VALUE_KEY)
    if isinstance(header, str):
        queue.last_values, queue.takes_all = LastValues(header), False


def keep_groups(queue: Queue) -> None:
    """The same for a queue whose messages have groups."""
    header = queue.arguments.get(GROUP_KEY)
    if isinstance(header, str):
        shared = queue.arguments.get(SHARED_GROUPS) is True
        queue.groups, queue.takes_all = Groups(header, keeps=not shared), False


def apply_settings(queue: Queue) -> None:
    """Set the queue's limits from its checked arguments and policies. Of two numbers the lower one
    applies; of two words the queue's own."""
    arguments = queue.arguments
    definition = effective_definition(queue.policy, queue.operator_policy)
    if queue.stream is not None:
        _apply_to_stream(queue, arguments, definition)
        return
    queue.max_length = _number(arguments, definition, "max-length")
    queue.max_bytes = _number(arguments, definition, "max-length-bytes")
    ttl_ms = _number(arguments, definition, "message-ttl")
    queue.ttl_us = ttl_ms * 1000 if ttl_ms >= 0 else -1
    expires_ms = _number(arguments, definition, "expires")
    queue.expires_us = expires_ms * 1000 if expires_ms >= 0 else -1
    queue.delivery_limit = _number(arguments, definition, "delivery-limit")
    queue.is_quorum = arguments.get("x-queue-type") == QUORUM
    queue.overflow = _name(arguments, definition, "overflow") or "drop-head"
    queue.dead_letter_exchange = _name(arguments, definition, "dead-letter-exchange")
    queue.dead_letter_key = _name(arguments, definition, "dead-letter-routing-key")
    strategy = _name(arguments, definition, "dead-letter-strategy")
    queue.at_least_once = (
        strategy == "at-least-once"
        and queue.overflow == "reject-publish"
        and queue.dead_letter_exchange is not None
    )
    has_keys = queue.last_values is not None or queue.groups is not None
    queue.max_priority = 0 if has_keys else _number(arguments, {}, "max-priority")
    queue.consumer_timeout_ms = _number(arguments, definition, "consumer-timeout")
    queue.single_active = arguments.get("x-single-active-consumer") is True


def _apply_to_stream(queue: Queue, arguments: Table, definition: Table) -> None:
    """As in RabbitMQ a policy takes precedence over the argument, and no other setting applies."""
    size = definition.get("max-length-bytes", arguments.get("x-max-length-bytes"))
    queue.max_bytes = size if isinstance(size, int) else -1
    kept_us = age_us(definition.get(MAX_AGE, arguments.get(_AGE)))
    queue.ttl_us = kept_us if kept_us > 0 else NO_TTL


def _number(arguments: Table, definition: Table, key: str) -> int:
    """The number; -1: neither sets it."""
    values = (arguments.get("x-" + key), definition.get(key))
    return min((value for value in values if isinstance(value, int)), default=-1)


def _name(arguments: Table, definition: Table, key: str) -> str | None:
    value = arguments.get("x-" + key, definition.get(key))
    return value if isinstance(value, str) else None


def check_exchange(name: str, vhost: str, arguments: Table) -> Refusal | None:
    alternate = arguments.get(_ALTERNATE, "")
    if type(alternate) is not str:
        return invalid_type(_ALTERNATE, "exchange", name, vhost, alternate)
    return None


def check_consume(queue: Queue, arguments: Table) -> Refusal | None:
    name, vhost, is_stream = queue.name, queue.vhost.name, queue.stream is not None
    for arg, value in arguments.items():
        if is_stream and arg == "x-priority":
            return not_of_type(arg, name, vhost, STREAM)
        if is_stream and arg in _FILTERS:
            why = _filter_fault(arg, value)
            if why is not None:
                return invalid_argument(arg, "queue", name, vhost, why)
        if arg == "x-priority":
            if type(value) is not int:
                why = f'"expected integer, got {type_of(value)}"'
                return invalid_argument(arg, "queue", name, vhost, why)
        elif arg == NO_CONSUME or arg in _NOT_OF_BROWSERS:
            refusal = _browse_refusal(queue, arg, value)
            if refusal is not None:
                return refusal
        elif arg in _CONSUME_STREAMS and not is_stream:
            return not_of_type(arg, name, vhost, queue_type(queue.arguments))
    return None


def is_browse_only(queue: Queue) -> bool:
    """Whether no consumer takes from it, whatever it asks for."""
    return queue.arguments.get(BROWSE_ONLY) is True


def filter_of(arguments: Table) -> tuple[bytes, ...]:
    """A reader's filter, from checked arguments; empty: all messages."""
    if FILTER not in arguments:
        return ()
    entries = dict.fromkeys(map(entry_of, _values(arguments[FILTER])))
    unfiltered = (NONE,) if arguments.get(MATCH_UNFILTERED) is True else ()
    return (*entries, *unfiltered)


def _filter_fault(argument: str, value: Value) -> str | None:
    """What is wrong with one of the two arguments."""
    if argument == MATCH_UNFILTERED:
        return None if isinstance(value, bool) else "a boolean is needed"
    values = _values(value)
    if not values:
        return "a string is needed, or a list of strings"
    if len(values) > FILTER_VALUES_MAX:
        return f"{len(values)} values: at most {FILTER_VALUES_MAX} are taken"
    return None


def _values(given: Value) -> tuple[str | bytes, ...]:
    """The values; none of them if one is not a text."""
    values = given if isinstance(given, tuple) else (given,)
    texts = tuple(one for one in values if isinstance(one, str | bytes))
    return texts if len(texts) == len(values) else ()


def _browse_refusal(queue: Queue, arg: str, value: Value) -> Refusal | None:
    if arg != NO_CONSUME:
        if value in (False, ""):
            return None
        why = f"consumer argument '{arg}' is {NOT_HONOURED}: {_NOT_OF_BROWSERS[arg]}"
        return not_implemented(why)
    if type(value) is not bool:
        return invalid_argument(arg, "queue", queue.name, queue.vhost.name, "a boolean is needed")
    ranked = queue.max_priority >= 0 and queue.last_values is None and queue.groups is None
    if value and ranked:
        where = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        return not_implemented(f"{where}: {NOT_BROWSED}")
    return None


def check_binding(source_type: str, arguments: Table) -> Refusal | None:
    """The x-match of a headers binding must be an existing mode."""
    mode = arguments.get("x-match", "all")
    if source_type == "headers" and mode not in ("all", "any", "all-with-x", "any-with-x"):
        return precondition_failed(
            f'Invalid x-match field value <<"{mode}">>; '
            "expected all, any, all-with-x, or any-with-x"
            if isinstance(mode, str)
            else f"Invalid x-match field type {type_of(mode)} (value {plain(mode)}); "
            "expected longstr"
        )
    return None


def compare_queue(name: str, vhost: str, received: Table, current: Table) -> Refusal | None:
    """The first argument, in RabbitMQ's order, in which two declarations of a queue differ."""
    foreign = _foreign_to(queue_type(current))
    return _compare("queue", name, vhost, _compared(received, foreign), _compared(current, foreign))


def compare_exchange(name: str, vhost: str, received: Table, current: Table) -> Refusal | None:
    """The same for an exchange."""
    received, current = (
        {arg: value for arg, value in one.items() if arg == _ALTERNATE}
        for one in (received, current)
    )
    return _compare("exchange", name, vhost, received, current)


def _compared(arguments: Table, foreign: tuple[str, ...]) -> Table:
    """The arguments that define the queue; defaults need not be given."""
    compared = (*_COMPARED, *_OF_WINDOW) if deduplicates(arguments) else _COMPARED
    return {
        arg: value
        for arg, value in arguments.items()
        if arg in compared and arg not in foreign and (arg, value) not in _SAYS_NOTHING
    }


def _compare(kind: str, name: str, vhost: str, received: Table, current: Table) -> Refusal | None:
    if canonical(received) == canonical(current):
        return None
    for arg in sorted({**received, **current}, key=_place):
        if canonical({"": received.get(arg)}) != canonical({"": current.get(arg)}):
            told = inequivalent if arg in received and arg in current else inequivalent_table
            return told(arg, kind, name, vhost, received.get(arg), current.get(arg))
    return None
