"""A joiner reaches its donor's state by the tail, or by a checkpoint and the tail, and never gives
one attempt's files to another."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from broker.durability import joiner as joiner_module
from broker.durability.donor import DonorLibrary, lies_on
from broker.durability.joiner import Joiner
from broker.durability.recovery import checkpoint_head, checkpoint_of, recover
from broker.durability.transfer_protocol import (
    FROM_JOINER,
    LOG,
    Block,
    Offer,
    Sender,
    Tag,
    Tail,
    decode,
)
from broker.incidents.incidents import Incidents
from broker.incidents.quarantine import Quarantine
from broker.machine.commands import PUBLISH
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import Divergence, ExecutionFailed, Replica, records_of
from store import swap
from store.api import Marker, Meta
from store.errors import DiskBroken, StoreCorrupt, failed
from store.lmdb_store import LmdbStore
from tests.support.stores.poisoned import META, Author, publish
from vsync.types import Member

JOINER, DONOR, OTHER = Member("b", 1, "b:1"), Member("a", 1, "a:1"), Member("c", 1, "c:1")
OWN = Meta("prod", "b", "5eed", cluster_id=META.cluster_id)
UNWRITTEN_MAX = 8000
"""At so many bytes that were applied and are not on disk the joiner waits."""


class Rig:
    """One joiner with stores on disk, and donors; the test steps datagrams and worker threads."""

    def __init__(self, tmp_path: Path, items: int = 60, checkpoint_at: int = 0) -> None:
        self.dir, self.now_s, self.free = tmp_path / "joiner", 0.0, 1 << 40
        self.dir.mkdir()
        self.author = Author()
        kept = 0 if checkpoint_at else 1 << 30
        self.store = LmdbStore(tmp_path / "donor", META, log_bytes_kept=kept)
        self.histories = [self.author.replica.history]
        for number in range(1, items + 1):
            self.author.submit(publish(number, b"body" * 500))
            self.author.keep(self.store)
            self.histories.append(self.author.replica.history)
            if number == checkpoint_at:
                self.checkpoint()
        self.jobs: list[Callable[[], None]] = []
        self.queue: list[tuple[Member, bytes]] = []
        self.cut_off: set[Member] = set()
        self.senders = {
            donor: Sender(
                lambda to, payload: self.queue.append((to, payload)),
                DonorLibrary(lambda: self.store, self.checkpoint, block_bytes=9000),
                self.work, self.now, piece_bytes=1000,
            )
            for donor in (DONOR, OTHER)
        }  # fmt: skip
        self.replica = Replica("b", Machine("b"), History())
        self.own = OWN
        self.wanted = True
        self.unwritten = self.unwritten_worst = 0
        self.written_a_step = 1 << 30
        self.verified: list[LmdbStore] = []
        self.discarded: list[LmdbStore] = []
        self.failed: list[str] = []
        self.broken: list[Exception] = []
        self.joiner: Joiner[LmdbStore] = Joiner(
            self, Quarantine(Incidents(self.dir), "1.0"),
            own=lambda: self.own, replica=lambda: self.replica, may_replace=self.may_replace,
            keeps_up=lambda: self.unwritten < UNWRITTEN_MAX,
            on_verified=self.take, on_items=self.follow, on_failed=self.failed.append,
            on_broken=self.broken.append,
        )  # fmt: skip

    def checkpoint(self) -> None:
        replica = self.author.replica
        meta = replace(self.store.meta, position=replica.history.position)
        self.store.write_checkpoint(replica.history.position, checkpoint_of(replica), meta)

    def may_replace(self, history: History) -> bool:
        return self.own.marker is not Marker.DIRTY or history.position >= self.own.position

    def take(self, replica: Replica, store: LmdbStore) -> bool:
        if self.wanted:
            self.replica = replica
            self.verified.append(store)
        return self.wanted

    def follow(self) -> None:
        while (item := self.joiner.next_item()) is not None:
            if item.first > self.replica.history.position:
                self.replica.follow(item)
                self.unwritten += len(item.item.body)
                self.unwritten_worst = max(self.unwritten_worst, self.unwritten)

    # -- its device ------------------------------------------------------------------------------

    def now(self) -> float:
        return self.now_s

    def send(self, to: Member, payload: bytes) -> None:
        self.queue.append((to, payload))

    def work(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        def run() -> None:
            try:
                result = job()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.jobs.append(run)

    def create(self, attempt: str, meta: Meta) -> LmdbStore:
        return swap.incoming(self.dir, attempt, meta)

    def discard(self, store: LmdbStore) -> None:
        self.discarded.append(store)
        store.close()

    def free_bytes(self) -> int:
        return self.free

    # -- time ------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_s += 0.01
        self.unwritten = max(0, self.unwritten - self.written_a_step)
        self.joiner.wake()
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()
        for donor, sender in self.senders.items():
            if donor not in self.cut_off:
                sender.pump(3000)
        queue, self.queue = self.queue, []
        for to, payload in queue:
            message = decode(payload)
            assert message is not None
            if message[0] not in FROM_JOINER:
                self.joiner.on_message(*message)
            elif to not in self.cut_off:
                self.senders[to].on_message(JOINER, *message)

    def run(self, until: Callable[[], bool]) -> None:
        for _ in range(3000):
            if until():
                return
            self.step()
        raise AssertionError(f"{self.joiner.progress} {self.failed}")

    @property
    def level(self) -> bool:
        return self.replica.history == self.author.replica.history


def test_a_member_a_little_behind_fetches_only_what_it_missed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for _, entry in rig.store.log(0):
        if rig.replica.history.position < 50:
            rig.replica.replay(entry)
    behind = rig.replica.history
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["tails"] == 1
    assert not rig.verified
    assert rig.replica.machine.root() == rig.author.replica.machine.root()
    sent = rig.senders[DONOR].counters["sent_bytes"]
    missed = rig.author.replica.history.position - behind.position
    assert sent < missed * 2500
    assert not list(rig.dir.glob("store.joining.*"))


def test_who_comes_back_applies_no_faster_than_its_disk_writes(tmp_path: Path) -> None:
    """All of what it missed waited in memory, until the lag made the member leave again."""
    rig = Rig(tmp_path)
    rig.written_a_step = 1000
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    largest = 2500  # bytes of an item
    assert UNWRITTEN_MAX <= rig.unwritten_worst < UNWRITTEN_MAX + largest


def test_an_empty_member_uses_the_tail_if_all_of_it_is_there(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert not rig.verified


def test_without_the_log_a_checkpoint_comes_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["checkpoints"] == 1
    (store,) = rig.verified
    assert recover("b", store).history == rig.histories[40]
    assert rig.replica.machine.root() == rig.author.replica.machine.root()


def test_a_state_off_the_donors_history_is_replaced(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    strange = Author()
    strange.submit(publish(1, b"another history"))
    rig.replica = strange.replica
    assert not lies_on(rig.store, rig.replica.history)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert len(rig.verified) == 1


def test_a_broken_state_is_replaced_even_before_any_checkpoint(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.replica.broken = True
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert len(rig.verified) == 1


@pytest.mark.parametrize("steps", [3, 6, 9, 12, 20, 30])
def test_after_a_new_view_it_resumes_where_it_was(tmp_path: Path, steps: int) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    for _ in range(steps):
        rig.step()
    rig.joiner.abort()
    for _ in range(5):
        rig.step()
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["checkpoints"] == 1
    assert len(rig.verified) == 1


@pytest.mark.parametrize("position", [0, 45, 63])
def test_a_store_with_a_vote_is_replaced_only_by_one_as_far_on(
    tmp_path: Path, position: int
) -> None:
    """Otherwise the vote would be gone until then, and perhaps the only majority with it."""
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.replica.broken = True
    rig.own = replace(OWN, marker=Marker.DIRTY, position=position)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: bool(rig.verified))
    (store,) = rig.verified
    assert store.meta.position >= position
    assert recover("b", store).history.position == store.meta.position
    rig.run(lambda: rig.level)


def test_a_complete_checkpoint_is_valid_with_another_donor(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._verifying)
    rig.joiner.abort()
    rig.cut_off.add(DONOR)
    rig.joiner.begin(OTHER, 0)
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["checkpoints"] == 1
    assert rig.senders[OTHER].counters["tails"] == 1
    assert not rig.senders[OTHER].counters["checkpoints"]


def test_half_a_checkpoint_is_dropped_for_another_donors(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._incoming is not None and rig.joiner._incoming.chunks > 0)
    rig.cut_off.add(DONOR)
    rig.joiner.begin(OTHER, 0)
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["checkpoints"] == 2
    assert len(rig.verified) == 1


def test_a_checkpoint_too_large_for_the_disk_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.free = 1 << 20
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: bool(rig.failed))
    assert "make room on the disk" in rig.failed[0]
    rig.free = 1 << 40
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)


@pytest.mark.parametrize("at", ["free_bytes", "create", "_add"])
def test_a_disk_that_takes_no_received_state_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)

    def refuses(*_: object) -> NoReturn:
        error = OSError(errno.EROFS, os.strerror(errno.EROFS), "store.joining.1")
        raise error if at == "free_bytes" else failed("store.joining.1", error)

    where: object = joiner_module if at == "_add" else rig
    monkeypatch.setattr(where, at, refuses)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: bool(rig.broken or rig.failed))
    assert not rig.failed
    assert isinstance(rig.broken[0], DiskBroken)
    assert "store.joining.1" in str(rig.broken[0])


def test_an_unexpected_exception_while_verifying_is_reported_counted_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)

    def wrong(*_: object, **__: object) -> Replica:
        raise ZeroDivisionError("ours")

    with monkeypatch.context() as patch:
        patch.setattr(joiner_module, "recover", wrong)
        rig.joiner.begin(DONOR, 0)
        rig.run(lambda: bool(rig.failed))
    assert rig.failed == ["ours"]
    assert rig.joiner.counters["unexpected"] == 1
    assert "in a way that is ours" in caplog.text
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)


def test_a_command_that_raises_in_a_received_state_is_not_executed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G16: the next attempt asks for a state behind it."""
    rig = Rig(tmp_path, checkpoint_at=40)
    item, point = rig.author.item(publish(61, b"x")), rig.histories[40]

    def raises(*_: object, **__: object) -> Replica:
        raise ExecutionFailed(item, point.position + 1, 0, bytes(16), PUBLISH)

    with monkeypatch.context() as patch:
        patch.setattr(joiner_module, "recover", raises)
        rig.joiner.begin(DONOR, 0)
        rig.run(lambda: bool(rig.failed))
    assert not rig.joiner.counters["unexpected"]
    assert rig.joiner._quarantine.beyond() == point.position + 1
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert rig.store.checkpoint() is not None
    assert rig.replica.history.position > point.position


def test_what_a_received_state_has_already_is_passed_over_in_its_tail(tmp_path: Path) -> None:
    """Its checkpoint may end within an entry of the donor's log."""
    rig = Rig(tmp_path, items=5)
    received = LmdbStore(tmp_path / "received", replace(META, position=0))
    replica, data = Replica("b", Machine("b"), History()), b""
    for _, entry in rig.store.log(0):
        data += entry
        end = max(one.last for one in records_of(data))
        joiner_module._follow(replica, received, Block(LOG, 0, end, data))
    assert replica.history == rig.author.replica.history
    assert received.meta.position == rig.store.meta.position
    received.close()


def test_a_thread_of_an_aborted_attempt_works_on_its_own_files(tmp_path: Path) -> None:
    """Regression: it verified a file that the next attempt was writing, and died of SIGBUS."""
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._verifying)
    (slow,) = rig.jobs
    rig.jobs = []
    rig.checkpoint()  # the donor has a newer one by now
    rig.joiner.abort()
    rig.joiner.begin(OTHER, 0)
    for _ in range(10):
        rig.step()
    thread = threading.Thread(target=slow)
    thread.start()
    thread.join()
    rig.run(lambda: rig.level)
    assert not rig.failed


def test_a_position_that_the_donor_has_not_reached_gives_nothing_yet(tmp_path: Path) -> None:
    """Its store may have been replaced since the joiner's point was judged. The worker that read
    there never ended."""
    rig = Rig(tmp_path, items=3)
    beyond = rig.store.meta.position + 5
    assert DonorLibrary(lambda: rig.store, lambda: None).read("b 1", LOG, beyond) == (beyond, b"")


def test_a_checkpoint_that_cannot_be_offered_is_not_kept_for_anybody(tmp_path: Path) -> None:
    """Each joiner that asked pinned it for ever, and with it all the log behind it."""
    rig = Rig(tmp_path)
    position = rig.author.replica.history.position
    rig.store.write_checkpoint(position, [checkpoint_head(History(1, 1))], rig.store.meta)
    with pytest.raises(Divergence):
        DonorLibrary(lambda: rig.store, lambda: None).judge("b 1", None, 0)
    saved = rig.store.pin()
    assert saved is not None
    rig.store.unpin(saved.generation)
    rig.checkpoint()
    with pytest.raises(StoreCorrupt):
        next(rig.store.chunks(saved, 0))


def test_who_may_not_execute_a_command_gets_a_state_behind_it_when_there_is_one(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    requested: list[int] = []
    library = DonorLibrary(lambda: rig.store, lambda: requested.append(1))
    point, end = rig.histories[50], rig.store.meta.position
    assert library.judge("b 1", point, point.position) == Tail(end), "it has executed that one"
    assert library.judge("b 1", point, point.position + 1) is None
    assert requested == [1]
    rig.checkpoint()
    rig.author.submit(publish(99, b"one more"))
    rig.author.keep(rig.store)
    rig.checkpoint()
    while rig.store.trim():
        pass
    assert rig.store.log_begins() == rig.store.meta.position + 1, "the first one is not kept"
    answer = library.judge("b 1", point, point.position + 1)
    assert isinstance(answer, Offer)
    assert answer.position == rig.store.meta.position


def test_each_block_is_that_of_its_cursor(tmp_path: Path) -> None:
    """A joiner asks again for one that got lost, after the reader has gone on."""
    rig = Rig(tmp_path)
    library = DonorLibrary(lambda: rig.store, lambda: None, block_bytes=9000)
    first = library.read("b 1", LOG, 0)
    second = library.read("b 1", LOG, first[0])
    assert library.read("b 1", LOG, 0) == first
    assert library.read("b 1", LOG, first[0]) == second


def test_a_joiner_that_asks_anew_lets_the_former_checkpoint_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    library = DonorLibrary(lambda: rig.store, lambda: None)
    for _ in range(2):
        assert isinstance(library.judge("b 1", None, 0), Offer)
    library.close("b 1")
    rig.checkpoint()
    while rig.store.trim():
        pass
    assert rig.store.log_begins() == rig.store.meta.position + 1


def test_half_a_checkpoint_is_given_up_for_a_newer_one_of_the_same_donor(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._incoming is not None and rig.joiner._incoming.staging is not None)
    rig.checkpoint()
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert not rig.failed
    assert (rig.joiner.counters["checkpoints"], rig.joiner.counters["resumed"]) == (2, 0)


def test_a_checkpoint_being_read_and_the_log_behind_it_stay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._incoming is not None)
    rig.checkpoint()
    rig.run(lambda: rig.level)
    assert rig.joiner.counters["checkpoints"] == 1
    rig.joiner.done()
    rig.run(lambda: not rig.senders[DONOR].readers)
    while rig.store.trim():
        pass
    assert rig.store.log_begins() == rig.store.meta.position + 1


@pytest.mark.parametrize("number", [0, 1, 30, 60])
def test_each_point_of_a_history_lies_on_it(tmp_path: Path, number: int) -> None:
    rig = Rig(tmp_path)
    point = rig.histories[number]
    assert lies_on(rig.store, point)
    assert not lies_on(rig.store, replace(point, chain=bytes(16)))
    assert not lies_on(rig.store, replace(point, position=point.position - 1))


def test_what_an_old_incarnation_read_is_released_without_harm(
    tmp_path: Path,
) -> None:
    """A worker still read for the old incarnation, and its end unpinned the checkpoint of both."""
    rig = Rig(tmp_path, checkpoint_at=40)
    sender, present = rig.senders[DONOR], JOINER._replace(incarnation=2)

    def asks(joiner: Member) -> int:
        sender.on_message(joiner, Tag.ASK, ("1", None, 0))
        rig.jobs.pop()()
        offer = sender.readers[joiner].answer
        assert isinstance(offer, Offer)
        return offer.generation

    sender.on_message(JOINER, Tag.GET, ("1", asks(JOINER), 0, ()))
    reading = rig.jobs.pop()
    generation = asks(present)
    reading()
    rig.checkpoint()
    sender.on_message(present, Tag.GET, ("1", generation, 0, ()))
    rig.jobs.pop()()
    assert not sender.counters["refused"]
    assert sender.readers[present].blocks


@pytest.mark.parametrize("leads_on", [False, True])
def test_a_state_a_worker_holds_is_discarded_when_unneeded(
    tmp_path: Path, *, leads_on: bool
) -> None:
    """It was kept, with a whole state in memory, or its store was closed under the worker."""
    rig = Rig(tmp_path, checkpoint_at=40)
    if leads_on:
        rig.replica.broken = True
        rig.own = replace(OWN, marker=Marker.DIRTY, position=1000)
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._verifying)
    if leads_on:
        rig.run(lambda: rig.joiner._verified is not None and not rig.joiner._verifying)
        rig.run(lambda: rig.joiner._verifying)
    kept = next(rig.dir.glob("store.joining.*"))
    rig.joiner.done()
    rig.run(lambda: not rig.joiner._verifying and not rig.jobs)
    assert rig.joiner._verified is None
    LmdbStore(kept).close()  # unlocked: the old one is closed
    rig.joiner.begin(DONOR, 0)
    rig.own = replace(OWN, marker=Marker.DIRTY)
    rig.run(lambda: rig.level)
    assert not rig.failed


@pytest.mark.parametrize("made", [False, True])
def test_half_a_checkpoint_a_worker_holds_is_discarded_too(tmp_path: Path, *, made: bool) -> None:
    """Its store is being made or written to, and would stay open until the process ends."""
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.joiner.begin(DONOR, 0)

    def in_hand() -> bool:
        incoming = rig.joiner._incoming
        return incoming is not None and incoming.busy and (incoming.store is not None) == made

    rig.run(in_hand)
    rig.joiner.done()
    rig.run(lambda: not rig.jobs)
    LmdbStore(next(rig.dir.glob("store.joining.*"))).close()  # unlocked: the old one is closed
    assert not rig.failed


def test_a_received_state_that_leads_nowhere_is_discarded(tmp_path: Path) -> None:
    """By the next attempt the donor has dropped what follows it, and has a newer checkpoint."""
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.replica.broken = True
    rig.own = replace(OWN, marker=Marker.DIRTY, position=1000)  # nothing may replace it yet
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._verified is not None and not rig.joiner._verifying)
    kept = next(rig.dir.glob("store.joining.*"))
    rig.joiner.abort()
    rig.now_s += 1000.0
    rig.senders[DONOR].wake()  # it keeps nothing for a joiner that asks no more
    rig.checkpoint()
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.joiner._incoming is not None and not rig.jobs)
    LmdbStore(kept).close()  # unlocked: the old one is closed
    rig.own = replace(OWN, marker=Marker.DIRTY)
    rig.run(lambda: rig.level)
    assert not rig.failed


def test_a_long_transfer_reports_its_progress_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "qpidd.join")
    rig = Rig(tmp_path)
    rig.joiner.begin(DONOR, 50)
    rig.cut_off.add(DONOR)
    for _ in range(120):
        rig.now_s += 0.1
        rig.joiner.wake()
    said = [r for r in caplog.records if r.getMessage() == f"asking {DONOR.name} for its state"]
    assert len(said) == 2


def test_an_unwanted_state_is_removed_and_the_join_retried(tmp_path: Path) -> None:
    rig = Rig(tmp_path, checkpoint_at=40)
    rig.wanted = False
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: bool(rig.failed))
    assert rig.failed == ["that state is no longer needed"]
    rig.step()  # the removal
    assert len(rig.discarded) == 1
    rig.wanted = True
    rig.joiner.begin(DONOR, 0)
    rig.run(lambda: rig.level)
    assert rig.verified
