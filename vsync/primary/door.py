"""The ring's *door*: judges a newcomer by its settings before it can cause a view.

Without it, a newcomer whose settings differ from those of the running members could enter the ring,
be refused in the state exchange, and leave: two view changes at each attempt. So every frame
carries a digest of the settings that all members must share. Where the digest differs, the ring
reads no further, and both sides show a *card* (`vsync.totem.membership.compatibility`). A member
that has run lets in a newcomer that the state exchange would not refuse. A refused newcomer reaches
the same verdict from the other member's card, and learns what differs, with both values.

Two members of which neither or both have run let each other in: the state exchange says which of
them waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

import msgpack

from vsync.errors import ConfigError
from vsync.primary.component import Primary
from vsync.primary.events import StateReport
from vsync.primary.settings import differences
from vsync.primary.state_exchange import mixing
from vsync.quorum.counting import Voter, contradiction
from vsync.quorum.voter_set import Terms
from vsync.types import Member

_FIELDS_MAX = 256
_TEXT_MAX = 1_024


class Card(NamedTuple):
    """The facts that a member shows at the door.

    `sizes`: the sizes of the members of its view that have run. `voters`: the newest voter set that
    it knows of; `epoch` and `position` say how new that is.
    """

    ran: bool
    arbitrator: bool
    transient: bool
    size: int
    sizes: tuple[int, ...]
    requested: Terms
    settings: tuple[tuple[str, str, bool], ...]
    cluster_id: str
    epoch: int
    position: int
    voters: Terms

    def encode(self) -> bytes:
        """Return it as bytes for the ring to carry."""
        return bytes(msgpack.packb(tuple(self)))


def card_of(mine: StateReport, reports: Mapping[Member, StateReport]) -> Card:
    """Return the card of a member in a view with these reports."""
    ran = [report for report in reports.values() if report.ran]
    newest = max((mine, *ran), key=lambda report: (report.state_epoch, report.position))
    return Card(
        mine.ran, mine.arbitrator, mine.transient, mine.size, tuple(sorted({r.size for r in ran})),
        mine.requested, mine.settings, mine.cluster_id, newest.state_epoch, newest.position,
        newest.voters,
    )  # fmt: skip


def read_card(data: bytes) -> Card | None:
    """Decode a card; None if it is malformed. Any process may have sent it."""
    try:
        fields = msgpack.unpackb(
            data, use_list=False, max_str_len=_TEXT_MAX, max_bin_len=0, max_map_len=0,
            max_ext_len=0, max_array_len=_FIELDS_MAX,
        )  # fmt: skip
        card = Card(*islice(fields, len(Card._fields)))  # a later release may have more
        numbers = card.size, card.epoch, card.position, *card.sizes
        texts = [card.cluster_id, *card.requested, *card.voters]
        flags = [card.ran, card.arbitrator, card.transient]
        for name, value, must in card.settings:
            texts += name, value
            flags.append(must)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    rows = card.sizes, card.requested, card.settings, card.voters
    good = all(type(row) is tuple for row in rows)
    good = good and all(type(n) is int for n in numbers) and all(type(f) is bool for f in flags)
    # These texts end up in a log.
    good = good and all(type(text) is str and text.isprintable() for text in texts)
    return card if good else None


class Refusal(NamedTuple):
    """Why a newcomer is not let in; empty: it is. `settings`: because of its settings."""

    why: str
    settings: bool


def refusal(comer: Card, name: str, guide: Card, who: str) -> Refusal:
    """Judge a newcomer by the card of a member that may have run."""
    if comer.ran or not guide.ran:
        return Refusal("", settings=False)
    newest = guide
    if comer.cluster_id == guide.cluster_id:  # it may have been there when the voters changed
        newest = max(guide, comer, key=lambda card: (card.epoch, card.position))
    settings = differences(comer, guide, who, {guide.size, *guide.sizes}, newest.voters)
    found = [settings]
    if comer.transient != guide.transient and not (comer.arbitrator or guide.arbitrator):
        found.append(mixing(transient=comer.transient))
    voter = Voter(comer.arbitrator, 0, 0, (), (), comer.requested, False)
    found.append(contradiction(name, voter, newest.voters))
    return Refusal("; ".join(sentence for sentence in found if sentence), bool(settings))


class PrimaryDoor:
    """The door of one member. `barred` is called each time this member is not let in.

    `unusual`: the settings that must be equal and are not at their defaults. With all defaults the
    digest is that of a release without these settings.
    """

    def __init__(
        self, me: Member, size: int, requested: Terms, *, transient: bool,
        barred: Callable[[Refusal], None], unusual: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        options = bytes(msgpack.packb((size, requested, transient, *unusual)))
        self.digest = hashlib.blake2b(options, digest_size=8, person=b"vsync.door").digest()
        self._me, self._barred = me, barred
        self._primary: Primary | None = None

    def opens(self, primary: Primary) -> None:
        """From now on there is a primary layer to ask."""
        self._primary = primary

    def card(self) -> bytes:
        """Return the card to show to a member that was started with other settings."""
        return self._card().encode()

    def _card(self) -> Card:
        assert self._primary is not None, "the ring runs before the layer above it"
        return card_of(self._primary.app.state_report(), self._primary.reports)

    def refuses(self, other: Member, data: bytes) -> str:
        """Return why one of the two refuses the other; empty: neither does."""
        theirs = read_card(data)
        if theirs is None:
            return ""  # of a layer without cards: the state exchange decides
        return self.judges(self._card(), other, theirs)

    def judges(self, mine: Card, other: Member, theirs: Card) -> str:
        """Return the same, by both cards."""
        try:
            if mine.ran:
                return refusal(theirs, other.name, mine, self._me.name).why
            found = refusal(mine, self._me.name, theirs, other.name)
        except ConfigError as error:  # terms that no voter set can parse
            return f"the settings of {other.name} cannot be read: {error}"
        if found.why:
            self._barred(found)
        return found.why
