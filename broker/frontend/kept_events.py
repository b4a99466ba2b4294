"""A client's events that its member has not carried out yet, in order of arrival.

There is one list for all reasons to wait, so that no event overtakes another:

- Until it is known whether the connection is admitted, or whether a method is allowed, that event
  and all later ones wait.
- During an alarm, publishes wait, with all that follows one on its channel, and behind them the
  client's close of its connection.

When a reason is over, `dispatch` examines the list again from its beginning; events that have to
wait again keep their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.amqp.events import BodyPart, Called, CloseRequested, Event, Published
from broker.amqp.fields import Value

OVERHEAD_BYTES = 200
"""The cost of a kept event beside its texts and bytes."""
VALUE_BYTES = 50
"""The further cost of each value in its arguments."""


class KeptEvents:
    """The kept events of one client."""

    def __init__(self) -> None:
        self.holds_all = False
        """All new events wait behind those already here."""
        self.bytes = 0
        self._events: list[Event] = []
        self._channels: set[int] = set()  # on which publishes wait for the end of an alarm

    @property
    def has_publishes(self) -> bool:
        """Whether publishes wait for the end of an alarm."""
        return bool(self._channels)

    def hold(self, event: Event) -> None:
        """Hold this event, and all that follow."""
        self.holds_all = True
        self.add((event,))

    def add(self, events: Iterable[Event]) -> None:
        """Add events behind those already here."""
        for event in events:
            self._events.append(event)
            self.bytes += _size(event)

    def sift(self, events: Iterator[Event]) -> Iterator[Event]:
        """Yield the events that may proceed during an alarm, one by one, and keep the others."""
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
        """Return and remove all events: their reason to wait is over."""
        events, self._events, self.bytes = self._events, [], 0
        self.holds_all = False
        self._channels.clear()
        return events

    def drop_channel(self, number: int) -> None:
        """Drop the kept events of a channel that has ended: they were sent on it before."""
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
