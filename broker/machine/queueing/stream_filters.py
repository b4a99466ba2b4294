"""Filters of streams: a reader that names values is sent the messages that were published with one.

A stream has a column: for each message, from the first with a value on, the hash of its value. To
find the next message for a reader is to look for eight bytes, so nobody reads what is passed over,
from disk least of all. The column follows from the messages and is no part of the snapshot.
Decision: docs/decisions/0079-a-stream-is-read-at-offsets.md.
"""

from xxhash import xxh3_64_intdigest

from broker.machine.commands import Table, Value
from broker.machine.limits import FILTER_VALUES_MAX
from broker.machine.queueing.properties import headers_of
from broker.machine.state import FilterColumn

FILTER, MATCH_UNFILTERED = "x-stream-filter", "x-stream-match-unfiltered"
"""The consumer arguments: a value or a list, and whether to be sent what has none as well."""
FILTER_VALUE = "x-stream-filter-value"
"""The header of a message."""
_IN_BYTES = FILTER_VALUE.encode()
_WIDTH = 8
_NONE = bytes(_WIDTH)


def column_entry(properties: bytes) -> bytes:
    """What the column has for a message."""
    if _IN_BYTES not in properties:
        return _NONE
    value = headers_of(properties).get(FILTER_VALUE)
    return _entry(value) if isinstance(value, str | bytes) else _NONE


def column_at(column: FilterColumn, offset: int) -> bytes:
    """The entry of an offset that is kept."""
    at = (offset - column.begin) * _WIDTH
    return bytes(column.entries[at : at + _WIDTH]) if column.entries and at >= 0 else _NONE


def _entry(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return (xxh3_64_intdigest(raw) or 1).to_bytes(_WIDTH, "little")


def note(column: FilterColumn, first: int, offset: int, properties: bytes) -> None:
    """A message came at this offset; `first` is the first that is kept."""
    entry, entries = column_entry(properties), column.entries
    if entries and column.begin < first:
        gone = min(first - column.begin, len(entries) // _WIDTH)
        del entries[: gone * _WIDTH]
        column.begin += gone
    if not entries:
        if entry == _NONE:
            return
        column.begin = offset
    entries += entry


def next_match(column: FilterColumn, wanted: tuple[bytes, ...], start: int, end: int) -> int:
    """The first offset from `start` on whose message a reader wants; `end`: none before that."""
    begin, entries = column.begin, column.entries
    if not entries or start < begin:
        if _NONE in wanted or not entries:
            return start if _NONE in wanted else end
        start = min(begin, end)
    low, best = (start - begin) * _WIDTH, (end - begin) * _WIDTH
    for entry in wanted:
        at = entries.find(entry, low, best)
        while at >= 0 and at % _WIDTH:  # it is half of one and half of the next
            at = entries.find(entry, at + 1, best)
        if at >= 0:
            best = at
    return begin + best // _WIDTH


def filter_of(arguments: Table) -> tuple[bytes, ...]:
    """What a reader wants, by arguments that were checked; empty: all."""
    if FILTER not in arguments:
        return ()
    entries = dict.fromkeys(map(_entry, _values(arguments[FILTER])))
    unfiltered = (_NONE,) if arguments.get(MATCH_UNFILTERED) is True else ()
    return (*entries, *unfiltered)


def filter_fault(argument: str, value: Value) -> str | None:
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
    """None of them if one is no text."""
    values = given if isinstance(given, tuple) else (given,)
    texts = tuple(one for one in values if isinstance(one, str | bytes))
    return texts if len(texts) == len(values) else ()
