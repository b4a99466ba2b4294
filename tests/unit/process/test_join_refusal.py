"""Who gives up at the start, who goes on, and what each is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.exit_codes import Exit
from broker.process.join_refusal import REFUSED_S, JoinRefusal, outdated, refusal_sentence
from broker.replication.controller import Controller
from vsync.io.diagnosis import FOREIGN_FRAMES_MAX
from vsync.io.keys import Allowed, make_pair, public_text
from vsync.io.security import Anonymous, Curve, KeyRefused, Plain, Security
from vsync.totem.config import RingConfig
from vsync.totem.events import Direct, Note
from vsync.totem.membership.compatibility import Handshake, Hello, OpenDoor, settings_of
from vsync.types import Member, RingId
from vsync.wire.codec import WIRE_VERSION, Codec

ME = Member("127.0.0.1:1", 100, "127.0.0.1:1")
NOBODY = "127.0.0.1:9"  # the discard port: nothing answers there


def alone(*others: Member, advice: tuple[str, ...] = ()) -> SimpleNamespace:
    """A primary layer whose view has these members too."""
    return SimpleNamespace(
        members=(ME, *others), active=bool(advice), advice=lambda: advice, ring=RingId(1, "a", 0)
    )


class Start:
    """A starting member, with all of its environment settable."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(ran=False, filled=False, primary=alone())
        self.me = ME
        codec = Codec(ME, "shop", 32_768, b"sets")
        self.handshake = Handshake(ME, "shop", RingConfig(), codec, OpenDoor())
        self.security: Security = Anonymous()
        self.refusals: dict[str, KeyRefused] = {}
        self.stopped: list[tuple[Exit, str]] = []
        self.warned: list[str] = []
        self.newcomer = JoinRefusal(
            cast("Controller", self.core), self, self, lambda *ends: self.stopped.append(ends),
            self.warned.append,
        )  # fmt: skip

    def hear(self, incarnation: int, cluster: str = "shpo") -> None:
        """Hear the hello of a stranger."""
        stranger = Member("b", incarnation, "b:1")
        word = Hello(stranger, WIRE_VERSION, cluster, settings_of(RingConfig()))
        self.handshake.on_hello(word.encode(), 0.0)

    def wait(self, seconds: float) -> None:
        for tick in range(int(seconds * 20) + 1):
            self.newcomer.wake(10 + tick / 20)


def running(start: Start) -> None:
    start.core.ran = True


def in_company(start: Start) -> None:
    start.core.primary = alone(Member("c", 1, "c:1"))


def older(start: Start) -> None:
    start.hear(ME.incarnation + 1)


def test_settings_that_should_be_equal_are_named_once() -> None:
    start = Start()
    start.core.primary = alone(advice=("clock-bound is 5 here and 10 at b",))
    start.core.primary.active = False  # not all have reported
    start.wait(1)
    assert not start.warned
    start.core.primary.active = True
    start.wait(2)
    assert start.warned == [
        "settings differ that should be equal: clock-bound is 5 here and 10 at b"
    ]
    assert not start.stopped


def test_settings_are_compared_once_in_each_view() -> None:
    start, compared = Start(), []

    def compare() -> list[str]:
        compared.append(start.core.primary.ring)
        return ["heartbeat is 1 here and 2 at b"] if len(compared) > 1 else []

    start.core.primary = alone(advice=("heartbeat",))
    start.core.primary.advice = compare
    start.wait(2)
    start.core.primary.ring = RingId(2, "a", 0)  # b has come
    start.wait(2)
    assert compared == [RingId(1, "a", 0), RingId(2, "a", 0)]
    assert len(start.warned) == 1


def test_the_later_member_gives_up() -> None:
    start = Start()
    start.hear(ME.incarnation - 1)
    start.wait(0.1)
    ((code, sentence), *_) = start.stopped
    assert code is Exit.PROTOCOL
    assert "cluster 'shpo'" in sentence
    assert "cluster 'shop'" in sentence


@pytest.mark.parametrize("why", [running, in_company, older])
def test_members_that_run_or_were_first_go_on(why: Callable[[Start], None]) -> None:
    start = Start()
    if why is not older:
        start.hear(ME.incarnation - 1)
        start.refusals[NOBODY] = KeyRefused.KEY
        start.handshake.foreign_frames = 10 * FOREIGN_FRAMES_MAX
    why(start)
    start.wait(2 * REFUSED_S)
    assert start.stopped == []


def test_frames_of_another_version_are_enough_without_a_hello() -> None:
    start = Start()
    start.handshake.foreign_frames = FOREIGN_FRAMES_MAX - 1
    start.wait(1)
    assert start.stopped == []
    start.handshake.on_foreign(bytes([9]) + bytes(80), 0.0)
    start.newcomer.wake(20)
    ((code, sentence),) = start.stopped
    assert code is Exit.PROTOCOL
    assert "another version" in sentence
    assert "(9)" in sentence
    assert f"version {WIRE_VERSION}" in sentence


def test_a_refusal_must_last() -> None:
    start = Start()
    start.refusals[NOBODY] = KeyRefused.MECHANISM
    start.wait(REFUSED_S / 2)
    start.refusals.clear()
    start.newcomer.wake(11.9)
    start.refusals[NOBODY] = KeyRefused.MECHANISM
    start.newcomer.wake(11.95)
    in_company(start)
    start.newcomer.wake(11.98)
    start.core.primary = alone()
    start.newcomer.wake(12.0)
    start.newcomer.wake(12.0 + REFUSED_S)
    assert start.stopped == []
    start.newcomer.wake(12.1 + REFUSED_S)
    assert [code for code, _ in start.stopped] == [Exit.NOT_ALLOWED]


def test_a_member_with_a_state_of_the_cluster_only_complains_once() -> None:
    """Taking a dead member's address must not let anyone end the others at a restart."""
    start = Start()
    start.core.filled = True
    start.refusals[NOBODY] = KeyRefused.MECHANISM
    start.wait(3 * REFUSED_S)
    assert start.stopped == []
    assert len(start.warned) == 1


def test_the_message_names_both_sides_and_the_remedy(tmp_path: Path) -> None:
    mine, theirs = make_pair(ME.name), make_pair(NOBODY)
    for pair in (mine, theirs):
        (tmp_path / f"{pair.name}.key").write_text(public_text(pair))
    curve = Curve(mine, Allowed(tmp_path, pytest.fail, pytest.fail))
    said = refusal_sentence(ME, curve, NOBODY, KeyRefused.KEY)
    assert all(word in said for word in (NOBODY, ME.name, mine.public, "--cluster-allow"))
    said = refusal_sentence(ME, curve, NOBODY, KeyRefused.THEIR_KEY)
    assert all(word in said for word in (NOBODY, theirs.public, str(tmp_path)))
    said = refusal_sentence(ME, curve, NOBODY, KeyRefused.MECHANISM)
    assert "another one" in said
    assert "CURVE" in said
    assert "password" in refusal_sentence(ME, Plain("u", "p"), NOBODY, KeyRefused.KEY)
    assert mine.secret not in said


def test_a_member_whose_clock_was_set_back_is_told_what_to_do() -> None:
    """It has no record of its former start, and the others drop its frames."""
    now, before = 1_764_424_800_000, 1_764_428_400_000  # an hour apart
    known: dict[str, str | int | float] = {
        "member": ME.name, "address": ME.address, "incarnation": now, "known": before,
    }  # fmt: skip
    sentence, to, answer = outdated(Note("outdated", known))
    assert to == ME._replace(incarnation=now)
    for time in ("2025-11-29T14:00:00", "2025-11-29T15:00:00"):
        assert time in sentence

    start = Start()
    start.me = to
    told = Direct(Member("c", 1, "c:1"), answer)
    assert start.newcomer.takes(told)
    assert start.newcomer.takes(told)
    (said,) = start.warned
    assert said.startswith("c drops the frames of this member, which started at 2025-11-29T14:00:0")
    assert "set it right and start this member again" in said
    assert not start.stopped, "it may hold a state, and whoever reaches the port could say so"


@pytest.mark.parametrize("what", ["in company", "later", "another datagram"])
def test_no_other_member_is_told_that(what: str) -> None:
    start = Start()
    known = 1 if what == "later" else ME.incarnation + 1
    note = Note("outdated", {"member": "a", "address": "a:1", "incarnation": 1, "known": known})
    answer = b"other" if what == "another datagram" else outdated(note)[2]
    if what == "in company":
        in_company(start)
    assert start.newcomer.takes(Direct(ME, answer)) is (what != "another datagram")
    assert not start.warned
