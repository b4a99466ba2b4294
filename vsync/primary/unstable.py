"""What a member holds when its primary view ends: messages that it does not know to be safe.

They were delivered in the transitional configuration.  Some other member may have learnt in time
that the first of them were safe, applied them and spoken about them, so none may be dropped as long
as that member's view had no successor.
Decision: docs/decisions/0005-the-donor-keeps-its-undecided-messages.md.
"""

from __future__ import annotations

from vsync.primary.events import Activation, Unstable
from vsync.totem.events import Deliver


class UnstableMessages:
    """One member's undecided messages, in their order.

    `complete` says that the state and these together hold all that anybody applied in the view of
    epoch `reach`.  It does not outlive the process.
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
        """Return the messages alone."""
        return [u.item for u in self.items]

    # -- while a view ends -----------------------------------------------------------------------

    def view_ends(self, epoch: int, *, applies: bool) -> None:
        """The view is over; `applies` when this member applied, in epoch `epoch`, all till now."""
        self._collecting, self._epoch = applies, epoch

    def view_ended(self) -> None:
        """Nothing more will come of the old view."""
        self._collecting = False

    def take(self, d: Deliver, payload: bytes) -> bool:
        """Keep a message of the ending view; false when it is none of ours."""
        if self._collecting:
            self.items.append(Unstable(self._epoch, d.ring, d.seq, d.sender, payload))
        return self._collecting

    def take_activation(self, d: Deliver, activation: Activation, again: list[Unstable]) -> None:
        """Others may have applied this activation: it follows what the donor said again."""
        last = Unstable(activation.epoch, d.ring, d.seq, d.sender, activation)
        self.items = [*again, last]
        self.complete = True
        self.view_ends(activation.epoch, applies=True)

    # -- when it is decided ----------------------------------------------------------------------

    def decided(self, count: int) -> list[Unstable]:
        """Return the first `count`, which are applied now, and forget these."""
        first, self.items = self.items[:count], self.items[count:]
        return first

    def activated(self) -> None:
        """This member applied an activation: what was undecided before it is so no more."""
        self.items, self.complete = [], True

    def replaced(self) -> None:
        """The state is another's now, and its view's undecided messages are not here."""
        self.items, self.complete = [], False
