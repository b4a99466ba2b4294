"""Records the outcome of the latest numbers that a producer gave its messages.

An entry is the outcome of one number, and never 0: a number without an entry was not used. One
array holds the entries of the last `NUMBERS_MAX` numbers up to the highest one. The sum of their
elements is kept as well, so that forgetting all of them costs nothing.
"""

from array import array
from collections.abc import Iterable, Iterator

from broker.machine.digest import MASK, number_element
from broker.machine.limits import NUMBERS_MAX
from broker.machine.state import Producer

VOLATILE = 4
"""The bit of an entry whose message is lost in a cold start."""


def entry_of(producer: Producer, number: int) -> int | None:
    """Return a number's entry: 0 if it was not used, None if it is too old to be known."""
    if number > producer.highest:
        return 0
    if number <= producer.highest - NUMBERS_MAX:
        return None
    at = number - producer.first
    return producer.entries[at] if at >= producer.skip else 0


def put(producer: Producer, number: int, entry: int) -> None:
    """Record the outcome of a number for which `entry_of` returned 0."""
    ahead = number - producer.highest
    if not producer.entries or ahead >= NUMBERS_MAX:
        forget_all(producer)
        producer.entries = array("Q", bytes(8))
        producer.first = producer.highest = number
    elif ahead > 0:
        producer.entries.frombytes(bytes(8 * ahead))
        producer.highest = number
        _forget(producer, number - NUMBERS_MAX + 1 - producer.first)
    elif number < producer.first + producer.skip:
        _free(producer)
        producer.entries[:0] = array("Q", bytes(8 * (producer.first - number)))
        producer.first = number
    producer.entries[number - producer.first] = entry
    _count(producer, number, entry, 1)


def forget_all(producer: Producer) -> None:
    """Forget all numbers: the producer begins anew, or all entries are too old."""
    producer.entries = array("Q")
    producer.highest = -1
    producer.first = producer.skip = producer.sum = producer.volatile = 0


def _forget(producer: Producer, until: int) -> None:
    """Forget entries that are too old; their space is freed when there are many."""
    for at in range(producer.skip, until):
        if producer.entries[at]:
            _count(producer, producer.first + at, producer.entries[at], -1)
    producer.skip = max(producer.skip, until)
    if producer.skip >= NUMBERS_MAX:
        _free(producer)


def _free(producer: Producer) -> None:
    del producer.entries[: producer.skip]
    producer.first += producer.skip
    producer.skip = 0


def forget_volatile(producer: Producer) -> None:
    """Treat the numbers of messages lost in a cold start as not used."""
    for at in range(producer.skip, len(producer.entries)):
        if producer.entries[at] & VOLATILE:
            _count(producer, producer.first + at, producer.entries[at], -1)
            producer.entries[at] = 0


def _count(producer: Producer, number: int, entry: int, times: int) -> None:
    element = number_element(producer.salt, number, entry)
    producer.sum = (producer.sum + times * element) & MASK
    if entry & VOLATILE:
        producer.volatile += times


def used(producer: Producer) -> Iterator[tuple[int, int]]:
    """Yield number and entry of each used number, ascending."""
    for at in range(producer.skip, len(producer.entries)):
        if producer.entries[at]:
            yield producer.first + at, producer.entries[at]


def recomputed_sum(producer: Producer) -> int:
    """Return the sum, computed anew from the current entries."""
    return sum([number_element(producer.salt, *one) for one in used(producer)]) & MASK


def places(producer: Producer) -> int:
    """Return a measure of the work to go through all entries."""
    return len(producer.entries) - producer.skip


def cut(producer: Producer) -> tuple[int, int, "array[int]"]:
    """Return the arguments of `restore`: highest number, number of the first entry, entries."""
    first = producer.first + producer.skip
    return producer.highest, first, producer.entries[producer.skip :]


def restore(producer: Producer, highest: int, first: int, entries: Iterable[int]) -> None:
    """Fill a new producer from the result of `cut`."""
    producer.highest, producer.first, producer.entries = highest, first, array("Q", entries)
    producer.sum = recomputed_sum(producer)
    producer.volatile = sum([one & VOLATILE > 0 for one in producer.entries])


def check(producer: Producer) -> None:
    """Assert the invariants that hold between commands."""
    known = dict(used(producer))
    assert all(entry_of(producer, number) == entry for number, entry in known.items())
    assert producer.sum == recomputed_sum(producer), "their own sum is of these numbers"
    assert producer.volatile == sum(one & VOLATILE > 0 for one in known.values())
    assert 0 < places(producer) <= NUMBERS_MAX
