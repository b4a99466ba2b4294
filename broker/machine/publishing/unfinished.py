"""Large bodies, which arrive in parts ahead of their message, so that others get their turn.

The parts are kept with the channel until its Publish takes them, or until the channel ends.
Decision: docs/decisions/0056-large-bodies-are-ordered-in-parts.md.
"""

from collections.abc import Collection, Iterable

from broker.machine.digest import part_element
from broker.machine.state import Channel, State, Unfinished
from broker.waiting.bodies import Body, GrowingBody


def keep_part(state: State, channel: Channel, data: bytes) -> None:
    """Keep the next part; its channel becomes the last of those that wait for a part."""
    _, unfinished = state.unfinished.pop(channel.key, (channel, Unfinished()))
    state.unfinished[channel.key] = channel, unfinished
    element = part_element(channel.salt, len(unfinished.body.parts), data)
    unfinished.body.add(data)
    unfinished.sum += element
    state.unfinished_bytes += len(data)
    state.add(element)


def whole_body(state: State, channel: Channel, rest: bytes) -> Body:
    """Return the channel's whole body, in parts, which wait no more; `rest` is the last part."""
    if channel.key not in state.unfinished:
        return rest
    _, unfinished = state.unfinished[channel.key]
    forget_parts(state, channel)
    return unfinished.body.whole(rest)


def forget_parts(state: State, channel: Channel) -> None:
    """Forget the parts of a channel that ends."""
    if channel.key in state.unfinished:
        _, unfinished = state.unfinished.pop(channel.key)
        state.unfinished_bytes -= unfinished.body.size
        state.remove(unfinished.sum)


class RestoredBodies:
    """Large bodies of a snapshot, which precede their messages."""

    def __init__(self) -> None:
        self._growing: dict[int, GrowingBody] = {}  # by message

    def add(self, number: int, part: bytes) -> None:
        self._growing.setdefault(number, GrowingBody()).add(part)

    def whole(self, numbers: Iterable[int], rests: Collection[bytes]) -> Collection[Body]:
        """Return the whole bodies of these messages, whose last parts are `rests`."""
        growing = self._growing
        if not growing:
            return rests
        return [
            growing.pop(number).whole(rest) if number in growing else rest
            for number, rest in zip(numbers, rests, strict=True)
        ]


def parts_sum(state: State) -> int:
    """Return the sum of the elements, from the bytes held now."""
    return sum(
        part_element(channel.salt, index, part)
        for channel, unfinished in state.unfinished.values()
        for index, part in enumerate(unfinished.body.parts)
    )


def check_parts(state: State) -> None:
    """Assert the invariants that hold between commands."""
    for key, (channel, unfinished) in state.unfinished.items():
        assert state.channels[key] is channel
        assert channel.open
        body = unfinished.body
        assert body.parts
        assert body.size == sum(map(len, body.parts))
    counted = sum(unfinished.body.size for _, unfinished in state.unfinished.values())
    assert counted == state.unfinished_bytes
