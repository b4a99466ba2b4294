"""Tracks the newest message of each key in a last-value queue, and whether it waits or is held.

Keys are 16 bytes; messages are named by their numbers in the queue. Of each key at most one message
is *live*: it waits, or a channel holds it. A message that a channel holds when a newer one comes is
*superseded*: it still belongs to the channel, and does not come back to the queue.
Decision: docs/decisions/0084-a-last-value-is-replaced-at-the-end.md.
"""


class LastValues:
    """The live messages by key, and the superseded ones."""

    __slots__ = ("elements", "header", "held", "raw_header", "superseded", "waiting")

    def __init__(self, header: str) -> None:
        self.header = header  # whose value is the key
        name = header.encode()
        self.raw_header = bytes((len(name),)) + name
        self.waiting: dict[bytes, int] = {}
        self.held: dict[bytes, int] = {}
        self.superseded: dict[int, None] = {}
        self.elements = 0  # the sum of those of what is superseded

    def waits(self, key: bytes, number: int) -> int | None:
        """The newest message of a key waits. Return the message held by a channel that it
        supersedes; an older waiting one was already taken out."""
        self.waiting[key] = number
        return self._newer_than_held(key, number)

    def hold(self, key: bytes, number: int) -> int | None:
        """A channel now holds a message that waited. Return the message that it supersedes."""
        old = self._newer_than_held(key, number)
        self.held[key] = number
        return old

    def _newer_than_held(self, key: bytes, number: int) -> int | None:
        old = self.held.pop(key, None)
        return old if old != number else None

    def let_go(self, key: bytes, number: int) -> None:
        """No channel holds it any more."""
        if self.held.get(key) == number:
            del self.held[key]
