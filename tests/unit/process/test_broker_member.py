"""The shell of a member: its turns and datagrams, and how it ends.

An end waits for some things, its parts end in an order, and the first reason is its exit code.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from broker.durability.store_writer import PATIENCE_S, CheckpointFailed
from broker.exit_codes import Exit
from broker.memberlog.writer import LogWriteFailed
from broker.process import member as member_file
from broker.process.member import FINISH_S, BrokerMember
from broker.waiting.pager import PageDamaged
from broker.watchdogs.watchdogs import BEAT_S
from store.errors import NoSpace, StoreFailed, StoreStuck
from vsync.totem.events import Deliver, Direct, View
from vsync.types import Guarantee, Member, RingId


class Shell:
    """A member whose parts record what is done to them; `now` is the loop's time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = parts = Mock()
        self.now, self.later = 100.0, list[tuple[float, Callable[[], None]]]()
        self.ended: list[tuple[Exit, str]] = []
        self.core = SimpleNamespace(
            primary=SimpleNamespace(members=()),
            serving=True,
            shutdown_position=0,
            filled=True,
            replica=Mock(),
            promise=Mock(),
        )
        parts.before_stop.awaited.return_value = False
        parts.before_stop.at_the_end = AsyncMock()
        parts.ring.node.members = ("a", "b")
        parts.log.settled, parts.log.close = AsyncMock(), AsyncMock(return_value=True)
        parts.member.persister.settled = AsyncMock()
        parts.supervisor.settled = AsyncMock(return_value=True)
        parts.supervisor.failed.return_value = (Exit.INTERNAL, "why")
        parts.one.finish.return_value = True
        parts.operations.stepped_aside.return_value = True
        parts.close_store = AsyncMock()
        parts.linger = AsyncMock()
        parts.loop.time = lambda: self.now
        parts.loop.call_later = lambda after, call, *given: self.later.append(
            (after, lambda: call(*given))
        )
        parts.loop.create_task = self._begin_end
        monkeypatch.setattr(member_file, "close_store", parts.close_store)
        monkeypatch.setattr("asyncio.sleep", parts.linger)
        self.member = one = BrokerMember.__new__(BrokerMember)
        of: dict[str, Any] = {
            "_controller": self.core, "_ring": parts.ring, "_loop": parts.loop,
            "_before_stop": parts.before_stop, "_member": parts.member, "_log": parts.log,
            "_beside": (parts.one,), "clients": parts.clients, "_beat_handle": parts.beat,
            "_watchdogs": parts.watchdogs, "operations": parts.operations,
            "_transfer": parts.transfer, "_supervisor": parts.supervisor,
            "_identity": parts.identity, "done": parts.done, "_timers": parts.timers,
            "_counters": {"turns": 0, "datagrams_of_strangers": 0}, "life": parts.life,
            "observation": parts.observation,
        }  # fmt: skip
        one.__dict__.update(of)
        self.end = one._stop

        async def stop(code: Exit, reason: str, *, inconsistent: bool) -> Exit:
            self.inconsistent = inconsistent
            self.ended.append((code, reason))
            return code

        monkeypatch.setattr(one, "_stop", stop)

    def _begin_end(self, ending: Coroutine[None, None, Exit]) -> Mock:
        with pytest.raises(StopIteration):
            ending.send(None)
        return Mock()

    def beat(self) -> None:
        """Do what was to be done later."""
        due, self.later = self.later, []
        for after, call in due:
            self.now += after
            call()

    def run_end(self, code: Exit = Exit.OK, *, inconsistent: bool = False) -> Exit:
        return asyncio.run(self.end(code, "why", inconsistent=inconsistent))

    @property
    def done(self) -> list[str]:
        """The calls of the parts, in order."""
        return [name for name, _, _ in self.parts.mock_calls]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


@pytest.mark.parametrize("why", ["", "others are here", "it does not serve", "it is shut down"])
def test_the_last_member_that_serves_shuts_the_cluster_down(ending: Shell, why: str) -> None:
    ending.parts.ring.node.members = ("a", "b")[: 1 + (why == "others are here")]
    ending.core.serving = why != "it does not serve"
    ending.core.shutdown_position = 7 * (why == "it is shut down")
    ending.member.terminate()
    assert ending.parts.operations.shutdown.called is (not why)
    assert ending.ended == [(Exit.OK, "asked to terminate")] * bool(why)


def test_an_end_waits_for_a_checkpoint_until_it_is_asked_for_again(ending: Shell) -> None:
    wait = ending.parts.before_stop
    wait.awaited.return_value = True
    ending.member.terminate()
    for _ in range(3):
        ending.beat()
    assert not ending.ended
    assert not ending.member.stopping, "it serves meanwhile"
    assert ending.now == pytest.approx(100.0 + 3 * BEAT_S)
    assert ending.parts.loop.call_soon.called, "turns hand the log to the disk"
    wait.skip.assert_not_called()
    ending.member.terminate()
    wait.skip.assert_called_once()
    wait.awaited.return_value = False
    ending.beat()
    assert ending.ended == [(Exit.OK, "asked to terminate")]


def test_a_shutdown_of_all_waits_for_its_checkpoint_at_the_end(ending: Shell) -> None:
    ending.parts.before_stop.awaited.return_value = True
    ending.parts.one.finish.return_value = False
    ending.core.shutdown_position = 7
    ending.member.stop(Exit.OK, "the end")
    assert ending.ended == [(Exit.OK, "the end")]


@pytest.mark.parametrize("what", ["a service", "its role"])
@pytest.mark.parametrize("until", ["it has ended", "the time is over", "it does not serve"])
def test_an_end_waits_for_what_runs_beside_a_member(ending: Shell, what: str, until: str) -> None:
    running = {
        "a service": ending.parts.one.finish, "its role": ending.parts.operations.stepped_aside
    }[what]  # fmt: skip
    running.return_value = False
    ending.member.stop(Exit.OK, "why")
    ending.beat()
    assert not ending.ended
    if until == "it has ended":
        running.return_value = True
    elif until == "the time is over":
        ending.now = 100.0 + FINISH_S
    else:
        ending.core.serving = False
    ending.beat()
    assert ending.ended == [(Exit.OK, "why")]


@pytest.mark.parametrize("waits", ["checkpoint", "service"])
def test_a_fault_ends_a_member_that_waits(ending: Shell, waits: str) -> None:
    ending.parts.before_stop.awaited.return_value = waits == "checkpoint"
    ending.parts.one.finish.return_value = False
    ending.member.stop(Exit.OK, "asked to")
    ending.member.stop(Exit.INTERNAL, "a fault")
    ending.member.stop(Exit.INTERNAL, "another")
    finished = ending.parts.one.finish.call_count
    ending.beat()
    assert ending.ended == [(Exit.INTERNAL, "a fault")]
    assert not ending.later
    assert ending.parts.one.finish.call_count == finished


def test_the_parts_end_in_order(ending: Shell) -> None:
    assert ending.run_end() is Exit.OK
    order = [
        "member.reply", "log.settled", "member.reply", "one.close", "clients.drop_all",
        "ring.leave", "transfer.close", "member.persister.settled", "member.persister.keep",
        "close_store", "log.close", "supervisor.settled", "ring.driver.stop", "identity.close",
    ]  # fmt: skip
    assert [one for one in ending.done if one in order] == order
    assert "linger" not in ending.done
    assert "before_stop.at_the_end" not in ending.done, "others go on: it was made before"
    assert ending.parts.beat.cancel.called
    assert ending.parts.watchdogs.hang.end.called
    assert ending.parts.identity.store is ending.parts.member.persister.store


@pytest.mark.parametrize("code", [Exit.OK, Exit.INTERNAL])
def test_after_a_shutdown_of_all_the_token_is_passed_on_for_the_others(
    ending: Shell, code: Exit
) -> None:
    ending.core.shutdown_position = 7
    assert ending.run_end(code) is code
    order = [
        "clients.drop_all", "linger", "operations.stop_members_without_state", "ring.leave",
        "member.persister.keep", "before_stop.at_the_end", "close_store",
    ]  # fmt: skip
    only_then = {"linger", "operations.stop_members_without_state", "before_stop.at_the_end"}
    wanted = [one for one in order if code is Exit.OK or one not in only_then]
    assert [one for one in ending.done if one in order] == wanted
    ending.parts.member.last_marker.assert_called_once_with(
        clean=code is Exit.OK, inconsistent=False
    )


@pytest.mark.parametrize("code", [Exit.OK, Exit.QUORUM])
@pytest.mark.parametrize(
    ("part", "error", "own", "tidied"),
    [
        ("close_store", NoSpace("full", 1), Exit.FULL, True),
        ("close_store", StoreStuck("no answer"), Exit.INTERNAL, False),
        ("log.close", LogWriteFailed("full", 28), Exit.FULL, True),
        ("log.close", False, None, False),
        ("supervisor.settled", False, None, False),
    ],
)
def test_a_disk_that_fails_at_the_end(
    ending: Shell,
    code: Exit,
    part: str,
    error: Exception | bool,
    own: Exit | None,
    *,
    tidied: bool,
) -> None:
    """The first reason decides the exit code. What hangs in the disk is left alone."""
    of: Any = ending.parts
    for name in part.split("."):
        of = getattr(of, name)
    of.side_effect, of.return_value = error if isinstance(error, Exception) else None, error
    found = ending.run_end(code)
    assert found is (code if own is None or code is not Exit.OK else own)
    assert ending.member.disk_stuck is not tidied
    assert ending.parts.identity.close.called is tidied
    assert ending.parts.ring.driver.stop.called
    patience_s = ending.parts.log.close.call_args.args[2]
    assert patience_s == (0.0 if isinstance(error, StoreStuck) else PATIENCE_S)


@pytest.mark.parametrize("when", ["running", "ending", "stopping"])
def test_what_a_failure_means_for_the_end(ending: Shell, when: str) -> None:
    """An end goes on without the checkpoint that it waits for."""
    ending.parts.before_stop.awaited.return_value = when == "ending"
    if when != "running":
        ending.member.stop(Exit.OK, "asked to")
    ending.member.failed(CheckpointFailed("it cannot be packed"))
    assert ending.parts.before_stop.skip.called is (when != "running")
    first = (Exit.OK, "asked to") if when == "stopping" else (Exit.INTERNAL, "why")
    assert ending.ended == [first] * (when != "ending")
    ending.parts.before_stop.skip.reset_mock()
    ending.member.failed(StoreFailed("an error of the disk"))
    assert ending.parts.before_stop.skip.called is (when != "ending")
    assert ending.ended == [first]


def test_a_damaged_page_ends_a_member_that_packs_its_last_checkpoint(ending: Shell) -> None:
    """Another member gives it the state: it must not claim that its own is whole."""
    ending.parts.before_stop.awaited.return_value = True
    ending.member.stop(Exit.OK, "asked to")
    error = CheckpointFailed("it cannot be packed")
    error.__cause__ = PageDamaged("another hash")
    ending.member.failed(error)
    assert ending.ended == [(Exit.INTERNAL, "why")]
    assert ending.inconsistent


@pytest.mark.parametrize(("shutdown", "taken"), [(0, False), (7, True)])
def test_a_stopping_member_applies_only_the_end_of_all(
    ending: Shell, shutdown: int, *, taken: bool
) -> None:
    sender = Member("a", 1, "a:1")
    ring = RingId(1, "a", 1)
    item = Deliver(ring, 1, sender, [b""], Guarantee.SAFE, False)
    ending.member._on_output(View(ring, (sender,), (), ()))
    ending.parts.watchdogs.on_view.assert_called_once_with((sender,))
    assert ending.parts.member.on_output.call_count == 1
    ending.member.stop(Exit.INTERNAL, "why")
    ending.core.shutdown_position = shutdown
    ending.member._on_output(item)
    assert ending.parts.member.on_output.call_count == 1 + taken
    ending.member._turn()
    ending.parts.member.turn.assert_not_called()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogWriteFailed("full", errno.ENOSPC), Exit.FULL),
        (LogWriteFailed("broken", errno.EIO), Exit.IO_ERROR),
        (LogWriteFailed("a bug"), Exit.INTERNAL),
    ],
)
def test_a_log_that_cannot_be_written_ends_the_member(
    ending: Shell, error: LogWriteFailed, code: Exit
) -> None:
    ending.member.failed(error)
    ((found, why),) = ending.ended
    assert found is code
    assert why.startswith(f"the member log cannot be written: {error}")


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")])
@pytest.mark.parametrize("given_up", [False, True])
def test_an_end_that_fails_is_one_too(
    ending: Shell, error: Exception | None, *, given_up: bool
) -> None:
    ending.parts.done.done.return_value = given_up
    task: Any = Mock(exception=lambda: error, result=lambda: Exit.QUORUM)
    ending.member._stopped(task)
    code = Exit.INTERNAL if error else Exit.QUORUM
    assert [one.args for one in ending.parts.done.set_result.mock_calls] == [(code,)] * (
        not given_up
    )


@pytest.mark.parametrize("work", ["memory", "commands", "commands of a halted member", ""])
@pytest.mark.parametrize("again_s", [None, 0.5])
def test_a_turn_is_followed_by_another_while_there_is_work(
    ending: Shell, work: str, again_s: float | None
) -> None:
    parts = ending.parts
    parts.watchdogs.memory.slice.return_value = work == "memory"
    parts.clients.gateway.has_work = work.startswith("commands")
    parts.clients.gateway.commands = [1] if work.startswith("commands") else []
    ending.core.halted = "outvoted" if work.endswith("member") else ""
    parts.operations.roles.follow.return_value = again_s
    parts.timers.ticker.turn.return_value = None
    ending.member.schedule()
    ending.member.schedule()
    parts.loop.call_soon.assert_called_once_with(ending.member._turn)
    ending.member._turn()
    assert parts.loop.call_soon.call_count == 1 + (work in ("memory", "commands"))
    assert [after for after, _ in ending.later] == [again_s] * (again_s is not None)
    ticks = [one.kwargs["busy"] for one in parts.timers.ticker.turn.call_args_list]
    assert ticks == [True] * work.startswith("commands") + [False], "a tick precedes commands"
    assert parts.member.turn.call_count == 1


TAKERS = (
    "life", "operations", "watchdogs", "observation.members", "one", "transfer",
)  # fmt: skip
"""Who may take a datagram, in this order; the last one takes what is left."""


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("sender", ["a", "a stranger"])
def test_a_datagram_goes_to_whom_it_is_for(ending: Shell, taker: str, sender: str) -> None:
    """Only one about this member's start may come from outside of the view."""
    here = Member("a", 1, "a:1")
    ending.parts.ring.node.members = (here,)
    asked: list[str] = []

    def takes(name: str, _datagram: Direct) -> bool:
        asked.append(name)
        return name == taker

    for name in TAKERS:
        of: Any = ending.parts
        for part in name.split("."):
            of = getattr(of, part)
        of.takes = partial(takes, name)
    ending.member._on_output(Direct(here._replace(name=sender), b"what"))
    reached = TAKERS[: TAKERS.index(taker) + 1] if sender == "a" else TAKERS[:1]
    assert tuple(asked) == reached
    stranger = sender != "a" and taker != "life"
    assert ending.member._counters["datagrams_of_strangers"] == stranger
    ending.parts.member.on_output.assert_not_called()
