"""A contender's thread over a real directory, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.sharing.lease import Contender, Found, Held, LeaseRecord
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.lease_thread import LINES, LeaseThread
from store.errors import StoreError


class Heard:
    """What the loop is told, in order."""

    def __init__(self) -> None:
        self.news: list[str] = []

    def waits(self, found: Found) -> None:
        self.news.append(f"waits for {found.token}")

    def elected(self) -> None:
        self.news.append("elected")

    def serves(self) -> None:
        self.news.append("serves")

    def lost(self, found: Found | None) -> None:
        self.news.append("lost")

    def shut_down(self) -> None:
        self.news.append("shut down")

    def failed(self, error: StoreError) -> None:
        self.news.append(str(error))

    def broke(self, error: Exception) -> None:
        self.news.append(f"broke: {error}")


class Contending:
    """One contender with steps and clock set by the test."""

    def __init__(self, directory: Path, name: str) -> None:
        self.now, self.heard = 0.0, Heard()
        self.leases = LeaseDirectory(directory, "shop")
        self.contender = Contender(LeaseRecord(0, "shop", name, name, "", 800, 0))
        self.thread = LeaseThread(
            self.leases, self.contender, lambda: self.now, self.heard, lambda call: call(), str
        )

    def leads(self) -> None:
        self.thread.step()
        self.contender.serve()
        self.thread.step()
        assert self.heard.news == ["elected", "serves"]


@pytest.fixture
def leader(tmp_path: Path) -> Contending:
    one = Contending(tmp_path, "a")
    one.leads()
    return one


def test_a_removed_lease_ends_its_leader(leader: Contending, tmp_path: Path) -> None:
    (tmp_path / "generation.000001").mkdir()
    (tmp_path / "lease.000001").unlink()
    assert leader.thread.step() is None
    assert leader.heard.news[-1] == "lost"
    assert not leader.contender.holds(leader.now)


def test_a_leader_with_an_empty_directory_is_told_so(leader: Contending, tmp_path: Path) -> None:
    """Regression: it was to start again, and would then have led an empty store."""
    (tmp_path / "lease.000001").unlink()
    assert leader.thread.step() is None
    assert "is its file system mounted?" in leader.heard.news[-1]


def test_a_waiter_whose_directory_is_empty_does_not_lead(
    leader: Contending, tmp_path: Path
) -> None:
    waiter = Contending(tmp_path, "b")
    waiter.thread.step()
    (tmp_path / "lease.000001").unlink()
    waiter.now = 100.0
    assert waiter.thread.step() is None
    assert "is its file system mounted?" in waiter.heard.news[-1]
    assert not list(tmp_path.iterdir())


def test_a_thread_that_dies_of_a_bug_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Contending(tmp_path, "a")

    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(one.contender, "look", fault)
    one.thread.start()
    one.thread.end(Held.RELEASED, 30)
    assert one.heard.news == ["broke: a fault"]


def test_an_unavailable_directory_does_not_end_the_leader(
    leader: Contending, tmp_path: Path
) -> None:
    """The lease expires meanwhile, and resumes on return if nobody has the next token."""
    lease = tmp_path / "lease.000001"
    away = lease.rename(tmp_path / "away")
    lease.mkdir()  # cannot be opened for writing, even by root
    leader.now = 1.0
    assert leader.thread.step() is not None
    assert "cannot be read or written" in leader.thread.trouble
    assert not leader.contender.holds(leader.now)
    lease.rmdir()
    away.rename(lease)
    leader.thread.step()
    assert not leader.thread.trouble
    assert leader.contender.holds(leader.now)


def test_a_waiter_takes_over_and_the_leader_has_lost(leader: Contending, tmp_path: Path) -> None:
    waiter = Contending(tmp_path, "b")
    waiter.thread.step()
    waiter.now = 0.97
    waiter.thread.step()
    assert waiter.heard.news == ["waits for 1", "elected"]
    leader.now = 5.0
    assert leader.thread.step() is None
    assert leader.heard.news[-1] == "lost"


def test_a_waiter_ends_with_a_shutdown_of_all(leader: Contending, tmp_path: Path) -> None:
    waiter = Contending(tmp_path, "b")
    waiter.thread.step()
    last = leader.contender.ends(Held.SHUT_DOWN)
    assert last is not None
    leader.leases.renew(last)
    waiter.thread.step()
    assert waiter.heard.news == ["waits for 1", "shut down"]
    assert waiter.thread.step() is None


def test_a_foreign_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "lease.000001").write_text("notes\n")
    one = Contending(tmp_path, "a")
    assert one.thread.step() is None
    assert "is no lease" in one.heard.news[0]


def test_lasting_trouble_is_repeated_each_minute(
    leader: Contending, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = tmp_path / "lease.000001"
    lease.rename(tmp_path / "away")
    lease.mkdir()
    for leader.now in range(1, 180):
        leader.thread.step()
    assert len(caplog.messages) == 3
    assert all(
        "cannot be read or written" in line and "see to the file" in line
        for line in caplog.messages
    )


@pytest.mark.parametrize(("slow_s", "pause_s"), [(0.05, 0.15), (0.3, 0.0)])
def test_a_slow_disk_does_not_make_renewals_less_frequent(
    slow_s: float, pause_s: float, leader: Contending, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = leader.leases.renew

    def slow(lease: LeaseRecord) -> None:
        renew(lease)
        leader.now += slow_s

    monkeypatch.setattr(leader.leases, "renew", slow)
    assert leader.thread.step() == pytest.approx(pause_s)


def test_a_renewal_between_reading_and_claiming_is_waited_for(
    leader: Contending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G38: the waiter was stopped in between, and the leader may reply for a lease from then on."""
    waiter = Contending(tmp_path, "b")
    claim = waiter.leases.claim

    def late(lease: LeaseRecord) -> bool:
        leader.now = waiter.now
        leader.thread.step()
        return claim(lease)

    monkeypatch.setattr(waiter.leases, "claim", late)
    waiter.thread.step()
    for waiter.now in (1.0, 1.4, 1.79):
        waiter.thread.step()
        assert leader.contender.holds(waiter.now)
        assert waiter.heard.news == ["waits for 1"]
    waiter.now = 2.0
    waiter.thread.step()
    assert waiter.heard.news == ["waits for 1", "elected"]


def test_a_file_system_that_was_away_for_both_causes_no_takeover(
    leader: Contending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has not changed for long, because its holder could not write it either."""
    waiter = Contending(tmp_path, "b")

    def away() -> Found:
        raise OSError(5, "Input/output error")

    waiter.thread.step()
    with monkeypatch.context() as patch:
        patch.setattr(waiter.leases, "newest", away)
        for waiter.now in range(1, 10):
            waiter.thread.step()
    waiter.thread.step()
    leader.now = waiter.now
    leader.thread.step()
    waiter.now += 0.9
    waiter.thread.step()
    assert waiter.heard.news == ["waits for 1"]
    assert leader.heard.news == ["elected", "serves"]


def test_a_full_disk_stays_trouble_though_it_is_readable(
    leader: Contending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The waiter reads in between, eight times within a lease, and takes over when there
    is room."""
    waiter = Contending(tmp_path, "b")

    def full(lease: LeaseRecord) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(waiter.leases, "claim", full)
        for tick in range(100):
            waiter.now = tick / 10
            waiter.thread.step()
    assert "No space left" in waiter.thread.trouble
    (line,) = caplog.messages
    assert "cannot be read or written: [Errno 28] No space left on device" in line
    for tick in range(100, 130):
        waiter.now = tick / 10
        waiter.thread.step()
    assert "elected" in waiter.heard.news
    assert not waiter.thread.trouble
    assert caplog.messages[1:] == ["the lease of the shared store can be read and written again"]


def test_intermittent_trouble_does_not_fill_the_disk(
    leader: Contending, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Trouble five times a second; the number of suppressed lines is logged."""
    renew = leader.leases.renew

    def lame(lease: LeaseRecord) -> None:
        if lease.count % 2:
            raise OSError(f"connection {lease.count} was refused")
        renew(lease)

    monkeypatch.setattr(leader.leases, "renew", lame)
    for tick in range(5 * 180):
        leader.now = tick / 5
        leader.thread.step()
    assert len(caplog.messages) < 2 * 3 * (LINES + 1) + 1
    assert any(
        "more lines like the last 5 (trouble) were left out" in line for line in caplog.messages
    )


def test_a_disk_that_does_not_answer_does_not_keep_the_process(leader: Contending) -> None:
    """The thread is blocked in it; an interpreter waits for all others before it ends."""
    assert leader.thread._thread.daemon
