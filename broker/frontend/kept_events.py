"""What a client has sent and its member has not carried out yet, in the order in which it came.

It is one list whatever it waits for, so that nothing can overtake: all that comes from a certain
event on waits, until it is known whether its connection is admitted, or whether this method is
allowed; or, while there is an alarm, publishes do, with all that follows one on its channel, and
behind them the client's close of its connection. What is over is looked at again from the beginning
of the list, in `dispatch`, and what has to wait again keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.amqp.events import BodyPart, Called, CloseRequested, Event, Published
from broker.amqp.fields import Value

OVERHEAD_BYTES = 200
"""What an event that is kept costs beside its texts and bytes."""
VALUE_BYTES = 50
"""What a value in its arguments costs beside that."""


class KeptEvents:
    """Those of one client."""

    def __init__(self) -> None:
        self.holds_all = False
        """Whatever comes waits behind what is here."""
        self.bytes = 0
        self._events: list[Event] = []
        self._channels: set[int] = set()  # on which publishes wait for the end of an alarm

    @property
    def has_publishes(self) -> bool:
        """Whether some wait for the end of an alarm."""
        return bool(self._channels)

    def hold(self, event: Event) -> None:
        """This one waits, and all that comes after it."""
        self.holds_all = True
        self.add((event,))

    def add(self, events: Iterable[Event]) -> None:
        """They wait behind what is here."""
        for event in events:
            self._events.append(event)
            self.bytes += _size(event)

    def sift(self, events: Iterator[Event]) -> Iterator[Event]:
        """Give out those that go on during an alarm, one by one, and keep the others."""
        for event in events:
            channel = getattr(event, "channel", None)
            if type(event) is Published or type(event) is BodyPart:
                self._channels.add(event.channel)
            elif channel not in self._channels and not (
                self._events and type(event) is CloseRequested
            ):
                yield event
                continue
            self.add((event,))

    def take(self) -> list[Event]:
        """All of it: nothing waits for what it waited for."""
        events, self._events, self.bytes = self._events, [], 0
        self.holds_all = False
        self._channels.clear()
        return events

    def drop_channel(self, number: int) -> None:
        """The channel has come to its end: what is kept was sent on it before."""
        self._channels.discard(number)
        kept = [event for event in self._events if getattr(event, "channel", None) != number]
        if len(kept) < len(self._events):
            self._events, self.bytes = kept, sum(map(_size, kept))


def _size(event: Event) -> int:
    if type(event) is Published:
        return OVERHEAD_BYTES + len(event.properties) + len(event.body)
    if type(event) is BodyPart:
        return OVERHEAD_BYTES + len(event.data)
    return OVERHEAD_BYTES + (_size_of(event.args) if type(event) is Called else 0)


def _size_of(value: Value) -> int:
    if isinstance(value, (str, bytes)):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return VALUE_BYTES + sum(_size_of(name) + _size_of(one) for name, one in value.items())
    return VALUE_BYTES + (sum(map(_size_of, value)) if isinstance(value, tuple) else 0)
