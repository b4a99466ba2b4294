"""Messages by their places: in order whenever they come, and copies that never change."""

from __future__ import annotations

import random

import pytest

from broker.waiting import places
from broker.waiting.places import Places


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PLACES_BLOCK", 4)


def whole(found: Places[str]) -> list[tuple[int, str]]:
    """The whole content, by each way to read it."""
    items = list(found.items())
    assert [place for place, _ in items] == list(found)
    assert [message for _, message in items] == list(found.values())
    assert (len(found), bool(found)) == (len(items), bool(items))
    assert not items or found.first == items[0][1]
    beside = {at + step for at, _ in items for step in (-1, 0, 1)}
    assert {place for place in beside if place in found} == {place for place, _ in items}
    return items


@pytest.mark.parametrize("seed", range(20))
def test_places_are_ordered_and_copies_never_change(seed: int) -> None:
    rng = random.Random(seed)
    found: Places[str] = Places()
    model: dict[int, str] = {}
    copies: list[tuple[Places[str], list[tuple[int, str]]]] = []
    for step in range(300):
        what = rng.random()
        if what < 0.55 or not model:
            place = rng.randrange(1000) if seed % 2 else 2 * step
            if place not in model:
                model[place] = f"{place} of {step}"
                found.put(place, model[place])
        elif what < 0.9:
            place = min(model)
            assert found.popleft() == (place, model.pop(place))
        elif what < 0.93:
            place = rng.choice(sorted(model))
            assert found.at(place) == model[place]
            assert found.remove(place) == model.pop(place)
        elif what < 0.96:
            place = max(model)
            assert found.pop() == (place, model.pop(place))
        else:
            copies.append((found.copy(), sorted(model.items())))
        assert whole(found) == sorted(model.items())
    assert len(copies) > 3
    for copy, expected in copies:
        assert whole(copy) == expected
    copy, expected = copies[0]
    copy.put(-1, "of the copy only")
    assert whole(copy) == [(-1, "of the copy only"), *expected]
    assert whole(found) == sorted(model.items())
    drained = [one for block in copies[1][0].drain() for one in zip(*block, strict=True)]
    assert drained == copies[1][1]
    assert not copies[1][0]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_many_messages_are_added_at_the_end(count: int) -> None:
    found: Places[str] = Places()
    found.put(1, "first")
    numbers = range(2, 2 + count)
    found.extend(numbers, [str(number) for number in numbers])
    found.put(100, "last")
    found.put(0, "before")
    middle = [(number, str(number)) for number in numbers]
    assert whole(found) == [(0, "before"), (1, "first"), *middle, (100, "last")]
