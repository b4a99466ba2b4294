"""Large bodies, which come in parts ahead of their message, so that others get their turn.

The parts are kept with the channel until its Publish takes them, or until the channel ends.
Decision: docs/decisions/0056-large-bodies-are-ordered-in-parts.md.
"""

from broker.machine.digest import part_element
from broker.machine.state import Channel, State, Unfinished


def keep_part(state: State, channel: Channel, data: bytes) -> None:
    """The next part: its channel is now the last of those that wait for one."""
    _, unfinished = state.unfinished.pop(channel.key, (channel, Unfinished()))
    state.unfinished[channel.key] = channel, unfinished
    element = part_element(channel.salt, len(unfinished.parts), data)
    unfinished.parts.append(data)
    unfinished.bytes += len(data)
    unfinished.sum += element
    state.unfinished_bytes += len(data)
    state.add(element)


def whole_body(state: State, channel: Channel, rest: bytes) -> bytes:
    """The channel's body, of which this is the rest; the parts are not kept any more."""
    if channel.key not in state.unfinished:
        return rest
    _, unfinished = state.unfinished[channel.key]
    forget_parts(state, channel)
    return b"".join((*unfinished.parts, rest))


def forget_parts(state: State, channel: Channel) -> None:
    """The channel ends."""
    if channel.key in state.unfinished:
        _, unfinished = state.unfinished.pop(channel.key)
        state.unfinished_bytes -= unfinished.bytes
        state.remove(unfinished.sum)


def parts_sum(state: State) -> int:
    """Of the elements, from the bytes that are held now."""
    return sum(
        part_element(channel.salt, index, part)
        for channel, unfinished in state.unfinished.values()
        for index, part in enumerate(unfinished.parts)
    )


def check_parts(state: State) -> None:
    """Asserts what must hold between commands."""
    for key, (channel, unfinished) in state.unfinished.items():
        assert state.channels[key] is channel
        assert channel.open
        assert unfinished.parts
        assert unfinished.bytes == sum(map(len, unfinished.parts))
    counted = sum(unfinished.bytes for _, unfinished in state.unfinished.values())
    assert counted == state.unfinished_bytes
