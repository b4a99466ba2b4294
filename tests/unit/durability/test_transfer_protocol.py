"""A stream arrives whole and in order, whichever datagrams are lost, late, duplicated
or damaged."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.durability.transfer_protocol import (
    BLOCKS_AHEAD,
    FROM_JOINER,
    GIVE_UP_S,
    KEPT_S,
    LOG,
    PINNED_S,
    Library,
    Offer,
    Receiver,
    Sender,
    Tag,
    Tail,
    decode,
    encode,
)
from broker.replication.chain import History
from vsync.types import Member

JOINER, DONOR = Member("j", 1, "j:1"), Member("d", 1, "d:1")
POINT = History(3, 100, b"chain...........")
OFFER = Offer(7, 40, 4000, 3, 500, b"c" * 16, b"o" * 16)


class Shelf(Library):
    """Blocks of random length, by cursor; the log ends at 140, and a checkpoint has 40 chunks."""

    def __init__(self, seed: int, answer: Tail | Offer | None = None) -> None:
        self.rng = random.Random(seed)
        self.answer = answer
        self.ends = {LOG: 140, OFFER.generation: OFFER.chunks}
        self.blocks: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.closed: list[str] = []
        self.fails = ""

    def judge(self, key: str, point: History | None, beyond: int) -> Tail | Offer | None:
        if self.fails:
            raise ValueError(self.fails)
        return self.answer

    def read(self, key: str, stream: int, cursor: int) -> tuple[int, bytes]:
        if cursor == self.ends[stream]:
            return cursor, b""
        if (stream, cursor) not in self.blocks:
            following = min(self.ends[stream], cursor + self.rng.randint(1, 9))
            data = self.rng.randbytes(self.rng.choice((1, 99, 100, 101, 1000)))
            self.blocks[stream, cursor] = following, data
        return self.blocks[stream, cursor]

    def close(self, key: str) -> None:
        self.closed.append(key)

    def whole(self, stream: int) -> bytes:
        return b"".join(
            data for (one, _), (_, data) in sorted(self.blocks.items()) if one == stream
        )


class Wire:
    """A joiner, a donor, and a network that loses, duplicates, delays and damages datagrams."""

    def __init__(self, seed: int, loss: float, answer: Tail | Offer | None) -> None:
        self.rng, self.loss, self.now = random.Random(seed), loss, 0.0
        self.queue: list[tuple[Member, bytes]] = []
        self.jobs: list[Callable[[], None]] = []
        self.shelf = Shelf(seed, answer)
        self.sender = Sender(self.send, self.shelf, self.work, lambda: self.now, piece_bytes=100)
        self.receiver = Receiver("1", DONOR, POINT, 0, 0.0, self.send)
        self.got: list[bytes] = []
        self.cursors: list[int] = []

    def send(self, to: Member, payload: bytes) -> None:
        if self.rng.random() < self.loss:
            return
        if self.rng.random() < self.loss:
            payload = payload[:-1] + bytes([payload[-1] ^ 1])
        self.queue += [(to, payload)] * (2 if self.rng.random() < self.loss else 1)

    def work(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        def run() -> None:
            try:
                result = job()
            except ValueError as error:
                done(None, error)
            else:
                done(result, None)

        self.jobs.append(run)

    def step(self) -> None:
        self.now += 0.01
        self.receiver.wake(self.now)
        self.sender.wake()
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()
        self.sender.pump(1000)
        queue, self.queue = self.queue, []
        self.rng.shuffle(queue)
        for to, payload in queue:
            message = decode(payload)
            if message is None:
                continue
            if to == DONOR:
                self.sender.on_message(JOINER, *message)
            else:
                self.receiver.on_message(*message, self.now)
        while (block := self.receiver.take(self.now)) is not None:
            self.got.append(block.data)
            self.cursors.append(block.following)

    def run(self, until: Callable[[], bool], steps: int = 20_000) -> None:
        for _ in range(steps):
            if until():
                return
            self.step()
        raise AssertionError("it does not end")


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("answer", [Tail(140), OFFER])
@pytest.mark.parametrize("seed", range(5))
def test_a_stream_arrives_whole_and_in_order(seed: int, answer: Tail | Offer, loss: float) -> None:
    wire = Wire(seed, loss, answer)
    stream = LOG if isinstance(answer, Tail) else OFFER.generation
    wire.run(lambda: wire.cursors[-1:] == [wire.shelf.ends[stream]])
    assert wire.receiver.answer == answer
    assert b"".join(wire.got) == wire.shelf.whole(stream)
    wire.loss = 0.0
    wire.receiver.done()
    wire.run(lambda: "j 1" in wire.shelf.closed)


def test_a_joiner_that_has_everything_keeps_asking_for_more() -> None:
    wire = Wire(1, 0.0, Tail(140))
    wire.run(lambda: wire.cursors[-1:] == [140])
    for _ in range(20):
        wire.step()  # it asks, and there is none
    wire.shelf.ends[LOG] = 150
    wire.run(lambda: wire.cursors[-1:] == [150])
    assert b"".join(wire.got) == wire.shelf.whole(LOG)


def test_neither_side_holds_more_than_a_few_blocks() -> None:
    wire = Wire(2, 0.0, OFFER)
    take, wire.receiver.take = wire.receiver.take, lambda now: None  # type: ignore[method-assign]
    for _ in range(200):
        wire.step()
    assert len(wire.receiver._blocks) + len(wire.receiver._assemblies) == BLOCKS_AHEAD
    assert len(wire.sender.readers[JOINER].blocks) <= 2 + BLOCKS_AHEAD
    assert not wire.receiver.failed
    wire.receiver.take = take  # type: ignore[method-assign]
    wire.run(lambda: wire.cursors[-1:] == [OFFER.chunks])
    assert len(wire.sender.readers[JOINER].blocks) <= 2 + BLOCKS_AHEAD


def test_a_checkpoint_resumes_where_it_ended() -> None:
    """After a lost link or view the same donor may still have it."""
    wire = Wire(3, 0.2, OFFER)
    wire.run(lambda: len(wire.got) == 4)
    here = wire.cursors[-1]
    wire.receiver = Receiver("2", DONOR, None, 0, wire.now, wire.send, (OFFER, here))
    wire.run(lambda: wire.cursors[-1:] == [OFFER.chunks])
    assert b"".join(wire.got) == wire.shelf.whole(OFFER.generation)


def test_another_checkpoint_starts_from_its_beginning() -> None:
    wire = Wire(4, 0.0, OFFER)
    wire.receiver = Receiver("2", DONOR, None, 0, 0.0, wire.send, (OFFER._replace(position=9), 30))
    wire.run(lambda: bool(wire.got))
    assert (OFFER.generation, 0) in wire.shelf.blocks


@pytest.mark.parametrize(
    "wrong", [(2, 2, 110), (-1, 2, 110), (1, 2, 99)], ids=["beyond", "below", "backwards"]
)
def test_a_piece_that_no_block_has_is_none(wrong: tuple[int, int, int]) -> None:
    receiver = Receiver("1", DONOR, POINT, 0, 0.0, lambda *_: None)
    receiver.on_message(Tag.TAIL, ("1", 140), 0.0)
    for place in ((0, 2, 110), wrong):
        receiver.on_message(Tag.PIECE, ("1", LOG, 100, *place, b"x"), 0.0)
    assert not receiver.has_block
    receiver.on_message(Tag.PIECE, ("1", LOG, 100, 1, 2, 110, b"y"), 0.0)
    block = receiver.take(0.0)
    assert block is not None
    assert block.data == b"xy"


def test_pieces_of_two_readings_of_a_block_are_not_mixed() -> None:
    """The donor read it again, for a piece that got lost, and further, as its log had grown."""
    receiver = Receiver("1", DONOR, POINT, 0, 0.0, lambda *_: None)
    receiver.on_message(Tag.TAIL, ("1", 140), 0.0)
    for number, of, following, data in (
        (0, 2, 110, b"old"), (1, 3, 120, b"new"), (2, 3, 120, b"er"), (0, 3, 120, b"the "),
    ):  # fmt: skip
        assert not receiver.has_block
        receiver.on_message(Tag.PIECE, ("1", LOG, 100, number, of, following, data), 0.0)
    block = receiver.take(0.0)
    assert block is not None
    assert (block.cursor, block.following, block.data) == (100, 120, b"the newer")


def test_both_sides_give_up_after_silence() -> None:
    wire = Wire(1, 0.0, Tail(140))
    wire.run(lambda: bool(wire.got))
    wire.loss = 1.0
    wire.run(lambda: bool(wire.receiver.failed))
    assert "nothing from d" in wire.receiver.failed
    assert GIVE_UP_S <= wire.now < GIVE_UP_S + 2
    wire.run(lambda: not wire.sender.readers)
    assert wire.now > KEPT_S
    assert wire.sender.counters["given_up"] == 1
    assert wire.shelf.closed == ["j 1"]


def test_no_joiner_keeps_a_checkpoint_from_deletion_for_ever() -> None:
    wire = Wire(1, 0.0, OFFER)
    wire.run(lambda: bool(wire.got))
    wire.now += PINNED_S
    wire.sender.readers[JOINER].used_at = wire.now
    wire.run(lambda: bool(wire.receiver.failed))
    assert wire.sender.counters["pins_expired"] == 1
    assert wire.shelf.closed == ["j 1"]


def test_nor_by_beginning_anew_now_and_then() -> None:
    wire = Wire(1, 0.0, OFFER)
    wire.run(lambda: bool(wire.got))
    for attempt in ("2", "3"):
        wire.now += PINNED_S / 2
        wire.sender.readers[JOINER].used_at = wire.now
        wire.receiver = Receiver(attempt, DONOR, None, 0, wire.now, wire.send)
        wire.run(lambda: bool(wire.receiver.answer or wire.receiver.failed))
    wire.run(lambda: wire.sender.counters["pins_expired"] == 1)


def test_one_worker_at_a_time_reads_for_a_joiner() -> None:
    """It began anew while one did: what reads for it knows one attempt."""
    wire = Wire(1, 0.0, OFFER)
    for attempt in ("1", "2"):
        wire.sender.on_message(JOINER, Tag.ASK, (attempt, None, 0))
    assert len(wire.jobs) == 1
    wire.jobs.pop()()
    wire.sender.on_message(JOINER, Tag.ASK, ("2", None, 0))
    assert len(wire.jobs) == 1


def test_a_donor_that_cannot_read_says_why() -> None:
    wire = Wire(1, 0.0, Tail(140))
    wire.shelf.fails = "the disk is gone"
    wire.run(lambda: bool(wire.receiver.failed))
    assert wire.receiver.failed == "d refused: the disk is gone"


def test_a_restarted_donor_is_asked_again_from_the_start() -> None:
    wire = Wire(1, 0.0, Tail(140))
    wire.run(lambda: bool(wire.got))
    wire.sender.close()
    wire.run(lambda: bool(wire.receiver.failed))
    assert "does not know that transfer" in wire.receiver.failed


def test_an_answer_that_is_not_ready_is_requested_again() -> None:
    wire = Wire(1, 0.0, None)
    for _ in range(100):
        wire.step()
    assert wire.receiver.answer is None
    wire.shelf.answer = OFFER
    wire.run(lambda: wire.receiver.answer == OFFER)


def test_garbage_is_not_a_message() -> None:
    assert decode(b"T\xff\xff") is None
    assert decode(b"T" + b"\x93\x63\x01\x02") is None
    assert decode(encode(Tag.ASK, "x", 1)) == (Tag.ASK, ("x", 1))
    assert Tag.PIECE not in FROM_JOINER
