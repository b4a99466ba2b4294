"""Flow control arithmetic of the token (Totem section on flow control), signed and clamped.

There are two limits: the frames that all members send in one rotation (`window`), shared in
proportion to each member's backlog, and the frames sent in one visit (`personal`). Nothing here
knows tokens or rings.
"""

from __future__ import annotations


def allowance(
    window: int, personal: int, sent_by_all: int, sent_by_me: int, waiting: int, mine: int, was: int
) -> int:
    """The number of frames that this visit may multicast, retransmissions included.

    `sent_by_all` and `waiting` are the token's sums at arrival, which still contain this member's
    parts of its last visit (`sent_by_me`, `was`); `mine` is this member's backlog now.
    """
    # The frames of the last visit leave the window now: the sum over a rotation never exceeds it.
    allowed = min(personal, window - max(0, sent_by_all - sent_by_me))
    total = max(0, waiting - was) + mine
    if total > 0:
        # At least one: with a share of zero a member with a short queue would starve.
        allowed = min(allowed, max(1, window * mine // total)) if mine else allowed
    return max(0, allowed)


class Flow:
    """One member's part of the token's sums; reset with every ring."""

    def __init__(self) -> None:
        self.sent = 0  # frames of the last visit, still contained in the token's sum
        self.waiting = 0  # the backlog reported at the last visit

    def settle(self, sent_sum: int, waiting_sum: int, sent: int, waiting: int) -> tuple[int, int]:
        """Replace this member's part in the token's two sums, and keep it for the next visit."""
        sums = (
            max(0, sent_sum - self.sent) + sent,
            max(0, waiting_sum - self.waiting) + waiting,
        )
        self.sent, self.waiting = sent, waiting
        return sums

    def describe(self) -> str:
        return f"sent {self.sent}, waiting {self.waiting}"
