"""Messages that a member does not know to be safe when its primary view ends.

They were delivered in the transitional configuration. Another member may have learnt in time that
the first of them were safe, applied them and replied to clients, so none may be dropped while that
view has no successor.
Decision: docs/decisions/0005-the-donor-keeps-its-undecided-messages.md.
"""

from __future__ import annotations

from vsync.primary.events import Activation, Unstable
from vsync.totem.events import Deliver


class UnstableMessages:
    """One member's unstable messages, in order.

    `complete`: the state and these messages together are everything that any member applied in the
    view of epoch `reach`. Lost with the process.
    """

    def __init__(self) -> None:
        self.items: list[Unstable] = []
        self.complete = False
        self._collecting = False
        self._epoch = 0

    def __len__(self) -> int:
        return len(self.items)

    def reach(self, state_epoch: int) -> int:
        """Return the highest epoch that the state or one of these messages belongs to."""
        epochs = [u.epoch for u in self.items if isinstance(u.item, Activation)]
        return max((state_epoch, *epochs))

    def bodies(self) -> list[bytes | Activation]:
        """Return the bodies of the messages."""
        return [u.item for u in self.items]

    # -- while a view ends -----------------------------------------------------------------------

    def view_ends(self, epoch: int, *, applies: bool) -> None:
        """Begin to collect, if this member has applied everything of epoch `epoch` so far."""
        self._collecting, self._epoch = applies, epoch

    def view_ended(self) -> None:
        """Stop collecting: the next view is installed."""
        self._collecting = False

    def add(self, d: Deliver, payload: bytes) -> bool:
        """Keep a message of the ending view; false when nothing is being collected."""
        if self._collecting:
            self.items.append(Unstable(self._epoch, d.ring, d.seq, d.sender, payload))
        return self._collecting

    def add_activation(
        self, d: Deliver, activation: Activation, reproposed: list[Unstable]
    ) -> None:
        """Keep an activation that others may have applied, behind the donor's messages."""
        last = Unstable(activation.epoch, d.ring, d.seq, d.sender, activation)
        self.items = [*reproposed, last]
        self.complete = True
        self.view_ends(activation.epoch, applies=True)

    # -- when they are decided -------------------------------------------------------------------

    def take(self, count: int) -> list[Unstable]:
        """Remove and return the first `count` messages, which are applied now."""
        first, self.items = self.items[:count], self.items[count:]
        return first

    def activated(self) -> None:
        """Forget all messages: this member applied an activation, which decided them."""
        self.items, self.complete = [], True

    def state_replaced(self) -> None:
        """Forget all messages: the state is now the donor's, whose unstable ones are not here."""
        self.items, self.complete = [], False
