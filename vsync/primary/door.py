"""The ring's *door*: by what members compare above the ring a newcomer is judged before any view.

Whoever differs from the members that have run in what must be equal could enter the ring, be
refused in the exchange of states, and leave: two changes of the view at each try.  So every frame
carries a digest of what a member was started with, and where it differs the ring does not read on,
but has both show a *card* (`vsync.totem.membership.compatibility`).  A member that has run lets in
whom the exchange of states would not refuse either; the one that is refused reads the same from the
other's card, and what differs, with both values.

Members of which none has run, or both, let each other in: the exchange of states tells who waits.
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
    """What a member shows at the door.

    `sizes`: those of the members of its view that have run.  `voters`: the newest that it knows of,
    of which `epoch` and `position` say how new they are.
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
        """Return it as bytes that the ring carries."""
        return bytes(msgpack.packb(tuple(self)))


def card_of(mine: StateReport, reports: Mapping[Member, StateReport]) -> Card:
    """Return the card of a member in a view of which these are the reports."""
    ran = [report for report in reports.values() if report.ran]
    newest = max((mine, *ran), key=lambda report: (report.state_epoch, report.position))
    return Card(
        mine.ran, mine.arbitrator, mine.transient, mine.size, tuple(sorted({r.size for r in ran})),
        mine.requested, mine.settings, mine.cluster_id, newest.state_epoch, newest.position,
        newest.voters,
    )  # fmt: skip


def read_card(data: bytes) -> Card | None:
    """Decode a card; None when it is none.  Anybody may have sent it."""
    try:
        fields = msgpack.unpackb(
            data, use_list=False, max_str_len=_TEXT_MAX, max_bin_len=0, max_map_len=0,
            max_ext_len=0, max_array_len=_FIELDS_MAX,
        )  # fmt: skip
        card = Card(*islice(fields, len(Card._fields)))  # one of a later release may have more
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
    """Why a newcomer is not let in; empty: it is.  `settings`: because of its settings."""

    why: str
    settings: bool


def refusal(comer: Card, name: str, guide: Card, who: str) -> Refusal:
    """Judge a newcomer by the card of one that may have run."""
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
    """The door of one member.  `barred` hears that this one is not let in, each time.

    `unusual`: the settings that must be equal and are not at their defaults; with the defaults the
    digest is that of a release without them.
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
        """From here on there is a primary layer to ask."""
        self._primary = primary

    def card(self) -> bytes:
        """Return what this member shows to one that was started with something else."""
        return self._card().encode()

    def _card(self) -> Card:
        assert self._primary is not None, "the ring runs before the layer above it"
        return card_of(self._primary.app.state_report(), self._primary.reports)

    def refuses(self, other: Member, data: bytes) -> str:
        """Return why one of the two does not let the other in; empty: both do."""
        theirs = read_card(data)
        if theirs is None:
            return ""  # of a layer that shows none: the exchange of states finds out
        return self.judges(self._card(), other, theirs)

    def judges(self, mine: Card, other: Member, theirs: Card) -> str:
        """Return the same, by both cards."""
        try:
            if mine.ran:
                return refusal(theirs, other.name, mine, self._me.name).why
            found = refusal(mine, self._me.name, theirs, other.name)
        except ConfigError as error:  # terms that no voter set reads
            return f"the settings of {other.name} cannot be read: {error}"
        if found.why:
            self._barred(found)
        return found.why
