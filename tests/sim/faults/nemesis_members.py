"""Faults of processes, disks, clocks and clients; `nemesis` starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tests.sim.faults.shutdown_of_all import ShutdownOfAll
from tests.sim.stacks.stack import Restorable, Wipeable
from tests.sim.world.random_tape import Tape
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember
    from tests.sim.world.world import World

HOUR_US = 3_600_000_000


@runtime_checkable
class Stoppable(Protocol):
    """A member that writes something before it leaves."""

    def ends(self, down_s: float) -> None: ...


@runtime_checkable
class HasClients(Protocol):
    """Clients of a member, which can disconnect."""

    def abort(self) -> None: ...
    def reconnect(self) -> None: ...
    def send_elsewhere(self) -> None: ...


class MemberFaults:
    """Each method is one episode; `length` is its duration."""

    def __init__(self, world: World, tape: Tape, length: Callable[[], float]) -> None:
        self.world, self.tape, self.length = world, tape, length
        world.shutdown = self._of_all = ShutdownOfAll(world, tape.fork("shutdown"))
        self.handlers: dict[str, Callable[[], None]] = {
            "crash": self.crash,
            "crash_mid_output": self.crash_mid_output,
            "crash_quick": self.crash_quick,
            "crash_all": self.crash_all,
            "wipe": self.wipe,
            "pause": self.pause,
            "leave": self.leave,
            "slow_member": self.slow_member,
            "pause_long": self.pause_long,
            "restart_storm": self.restart_storm,
            "disk_slow": self.disk_slow,
            "disk_fails": self.disk_fails,
            "disk_full": self.disk_full,
            "disk_freeze": self.disk_freeze,
            "restore": self.restore,
            "clock_jump": self.clock_jump,
            "flood": self.flood,
            "client_abort": self.client_abort,
            "client_reconnect": self.client_reconnect,
            "restore_two": self.restore_two,
            "client_twin": self.client_twin,
            "stop": self.stop,
            "shutdown": self.shutdown,
        }

    def _token_s(self) -> float:
        return self.world.plan.token_timeout_ms / 1000.0

    def _running(self) -> list[SimMember]:
        return [member for member in self.world.members.values() if member.running]

    def _one(self) -> SimMember | None:
        running = self._running()
        return self.tape.pick(running) if running else None

    # -- processes -------------------------------------------------------------------------------

    def _crash(self, how: str, member: SimMember, down_s: float) -> None:
        self.world.fault(how, member.name, member)
        member.crash()
        self.world.after(down_s, self.world.revive, member.name)

    def crash(self) -> None:
        member = self._one()
        if member is not None:
            self._crash("crash", member, self.length() * 2)

    def crash_quick(self) -> None:
        """Crash, and return before any other member can have noticed."""
        member = self._one()
        if member is not None:
            self._crash("crash_quick", member, self._token_s() * self.tape.between(0.01, 0.6))

    def crash_mid_output(self) -> None:
        """Crash between two outputs of one step: half of its frames have left, half have not."""
        member = self._one()
        if member is not None:
            self.world.fault("crash_armed", member.name)
            member.arm_crash(self.tape.number(1, 12), self.length())

    def crash_all(self) -> None:
        for member in self._running():
            self._crash("crash_all", member, self.length() * self.tape.between(0.2, 2.0))

    def wipe(self) -> None:
        """Crash a member and destroy its disk; never at more members than disks can tolerate."""
        member = self._one()
        if member is not None:
            self._crash("wipe", member, self.length() * 2)
            if isinstance(self.world.stack, Wipeable):
                self.world.stack.wipe(member.name, self.world.plan.names)

    def restore(self) -> None:
        """Crash a member, and let it return with an older image of its disk, as from a backup."""
        member, stack = self._one(), self.world.stack
        if member is None or not isinstance(stack, Restorable):
            return
        image = stack.backup(member.name)
        self.world.during(self.length() * 4, self._restore, member, image)

    def restore_two(self) -> None:
        """The same of two members at about the same time, of four or five."""
        running, stack = self._running(), self.world.stack
        if len(self.world.plan.names) < 4 or len(running) < 2 or not isinstance(stack, Restorable):
            return
        for member in self.tape.some(running, 2, 2):
            in_s = self.length() * 4
            self.world.during(in_s, self._restore, member, stack.backup(member.name), 1)

    def _restore(self, member: SimMember, image: object, forgetful: int = 0) -> None:
        """`forgetful`: how many other members may lack, too, what this one forgets."""
        stack = self.world.stack
        if not member.running or not isinstance(stack, Restorable):
            return
        self._crash("restore_two" if forgetful else "restore", member, self.length() * 2)
        if stack.restore(member.name, image, self.world.plan.names, forgetful):
            self.world.fault("restored", member.name)

    def restart_storm(self) -> None:
        """Crash and restart one member again and again, each time before the others are done."""
        member = self._one()
        if member is None:
            return
        step = self._token_s() * self.tape.between(0.1, 1.5)
        for turn in range(self.tape.number(2, 6)):
            self.world.during(turn * step, self._storm, member, step * self.tape.between(0.1, 0.9))

    def _storm(self, member: SimMember, down_s: float) -> None:
        if member.running:
            self._crash("restart_storm", member, down_s)

    def pause(self) -> None:
        """Stop the process (SIGSTOP); later it finds everything in its inbox at once."""
        self._pause("pause", self.length())

    def pause_long(self) -> None:
        """Stop it for many token timeouts: the others have long moved on."""
        self._pause("pause_long", self._token_s() * self.tape.between(3.0, 20.0))

    def _pause(self, how: str, seconds: float) -> None:
        member = self._one()
        if member is not None:
            self.world.fault(how, member.name, member)
            member.pause()
            self.world.after(seconds, member.resume)

    def slow_member(self) -> None:
        """Give a process little of its processor."""
        member = self._one()
        if member is not None:
            self.world.fault("slow_member", member.name, member)
            member.slowness = self.tape.between(5.0, 60.0)
            self.world.after(self.length() * 2, self._as_fast, member)

    def _as_fast(self, member: SimMember) -> None:
        member.slowness = 1.0

    def leave(self) -> None:
        member = self._one()
        if member is not None:
            self.world.fault("leave", member.name, member)
            member.leave(self.length())

    def stop(self) -> None:
        """Stop one as an operator does: it leaves after it has written a checkpoint, and handles
        what arrives meanwhile as usual."""
        member = self._one()
        if member is not None and isinstance(member.upper, Stoppable):
            self.world.fault("stop", member.name, member)
            member.upper.ends(self.length())

    def shutdown(self) -> None:
        """Shut all down as an operator does, and start them again."""
        self._of_all.begin()

    # -- disks and clocks ------------------------------------------------------------------------

    def disk_slow(self) -> None:
        member = self._one()
        if member is not None:
            self.world.fault("disk_slow", member.name, member)
            member.disk_slowness = self.tape.between(5.0, 50.0)
            self.world.after(self.length() * 3, self._as_usual, member)

    def disk_fails(self) -> None:
        """Let the next commit fail; nobody knows whether it is on the disk, so the member stops."""
        self._fail_disk("disk_fails", self._token_s() * 0.5)

    def disk_full(self) -> None:
        """Refuse commits for a while: it stops, and cannot start before there is space."""
        self._fail_disk("disk_full", self.length() * 4)

    def _fail_disk(self, how: str, seconds: float) -> None:
        member = self._one()
        if member is not None:
            self.world.fault(how, member.name, member)
            member.disk_fails = True
            self.world.after(seconds, self._as_usual, member)

    def _as_usual(self, member: SimMember) -> None:
        member.disk_slowness, member.disk_fails = 1.0, False

    def disk_freeze(self) -> None:
        """Let no write return for seconds; or none ever, until the machine is restarted."""
        member = self._one()
        if member is None or member.disk_frozen:
            return
        self.world.fault("disk_freeze", member.name, member)
        member.freeze_disk()
        seconds = self.tape.pick((0.1, 1.0, 6.0, 20.0)) * self.tape.between(0.5, 1.5)
        if self.tape.chance(0.75):
            self.world.after(seconds, member.thaw_disk)
        else:
            self.world.during(seconds, self._reset, member)

    def _reset(self, member: SimMember) -> None:
        """Switch the machine off and on again; its disk works then."""
        if member.up:
            self._crash("reset", member, self._token_s() * self.tape.between(0.5, 5.0))
        member.thaw_disk()

    def clock_jump(self) -> None:
        """Set the wall clock forwards or backwards, by up to hours."""
        member = self._one()
        if member is not None:
            self.world.fault("clock_jump", member.name, member)
            size = self.tape.pick((1_000, 1_000_000, 60_000_000, 3 * HOUR_US))
            member.wall_offset_us = self.tape.number(-size, size)

    # -- clients ---------------------------------------------------------------------------------

    def flood(self) -> None:
        """Submit far more at once than a member can take: the excess must be refused, not lost."""
        member = self._one()
        if member is None:
            return
        self.world.fault("flood", member.name, member)
        for _ in range(self.tape.number(20, 150)):
            level = Guarantee.SAFE if self.tape.chance(0.5) else Guarantee.AGREED
            if not member.up or not member.submit(self.tape.number(0, 2000), level):
                return

    def client_abort(self) -> None:
        """Disconnect consumers of one member that have unacknowledged messages."""
        self._have_clients("client_abort", lambda clients: clients.abort())

    def client_reconnect(self) -> None:
        """Disconnect a publisher with confirms outstanding, and reconnect it."""
        self._have_clients("client_reconnect", lambda clients: clients.reconnect())

    def client_twin(self) -> None:
        """Let a publisher that numbers its messages send the unconfirmed ones by another member
        too."""
        self._have_clients("client_twin", lambda clients: clients.send_elsewhere())

    def _have_clients(self, fault: str, do: Callable[[HasClients], None]) -> None:
        """Let the clients of one member do something, if it has any."""
        member = self._one()
        clients = getattr(member.upper, "clients", None) if member is not None else None
        if member is not None and isinstance(clients, HasClients):
            self.world.fault(fault, member.name, member)
            do(clients)
