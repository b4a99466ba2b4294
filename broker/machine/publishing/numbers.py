"""What became of the numbers that a producer gave its messages: those of the latest ones.

An entry says what became of one number, and is never 0: a number without one was not used. Kept are
the entries of the last `NUMBERS_MAX` numbers up to the highest one, in one array; the sum of their
elements is kept along with them, so that forgetting all of them costs nothing.
"""

from array import array
from collections.abc import Iterable, Iterator

from broker.machine.digest import MASK, number_element
from broker.machine.limits import NUMBERS_MAX
from broker.machine.state import Producer

VOLATILE = 4
"""The bit of an entry whose message a cold start takes."""


def entry_of(producer: Producer, number: int) -> int | None:
    """What became of it: 0 if it was not used, None if it is too old to be known."""
    if number > producer.highest:
        return 0
    if number <= producer.highest - NUMBERS_MAX:
        return None
    at = number - producer.first
    return producer.entries[at] if at >= producer.skip else 0


def put(producer: Producer, number: int, entry: int) -> None:
    """Note what became of a number for which `entry_of` returned 0."""
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
    """It begins anew, or all that is known is too old."""
    producer.entries = array("Q")
    producer.highest = -1
    producer.first = producer.skip = producer.sum = producer.volatile = 0


def _forget(producer: Producer, until: int) -> None:
    """What is too old; its place is freed when there is much of it."""
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
    """A cold start took their messages: these numbers are as if they had not been used."""
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
    """Number and entry of each that was used, ascending."""
    for at in range(producer.skip, len(producer.entries)):
        if producer.entries[at]:
            yield producer.first + at, producer.entries[at]


def recomputed_sum(producer: Producer) -> int:
    """The sum computed anew, from the entries that are held now."""
    return sum([number_element(producer.salt, *one) for one in used(producer)]) & MASK


def places(producer: Producer) -> int:
    """A measure of the work to look through them."""
    return len(producer.entries) - producer.skip


def cut(producer: Producer) -> tuple[int, int, "array[int]"]:
    """What `restore` takes: the highest number, that of the first entry, and the entries."""
    first = producer.first + producer.skip
    return producer.highest, first, producer.entries[producer.skip :]


def restore(producer: Producer, highest: int, first: int, entries: Iterable[int]) -> None:
    """The inverse of `cut`, into a new one."""
    producer.highest, producer.first, producer.entries = highest, first, array("Q", entries)
    producer.sum = recomputed_sum(producer)
    producer.volatile = sum([one & VOLATILE > 0 for one in producer.entries])


def check(producer: Producer) -> None:
    """Asserts what must hold between commands."""
    known = dict(used(producer))
    assert all(entry_of(producer, number) == entry for number, entry in known.items())
    assert producer.sum == recomputed_sum(producer), "their own sum is of these numbers"
    assert producer.volatile == sum(one & VOLATILE > 0 for one in known.values())
    assert 0 < places(producer) <= NUMBERS_MAX
