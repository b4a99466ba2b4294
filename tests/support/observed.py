"""Three members' machines in lockstep, seen by one member's statistics on a clock of their own."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from broker.frontend.channel import LocalChannel
from broker.frontend.connections import Connections
from broker.histogram import Histogram
from broker.machine.machine import Machine
from broker.machine.state import ConnectionRecord
from broker.replication.controller import Controller
from broker.statistics.figures import FIGURES, Figures
from broker.statistics.members import Link, MemberFigures
from broker.statistics.metrics import Metrics
from broker.statistics.metrics import Observed as Observed_
from broker.statistics.statistics import Statistics
from tests.support.three_machines import Rig
from vsync.types import Member

MEMBERS = tuple(Member(name, 1, f"127.0.0.1:{port}") for port, name in enumerate("abc", 1))


def local_channels(record: ConnectionRecord) -> dict[int, LocalChannel]:
    """Its channels as its member has them: of three publishes two are confirmed, one of them
    early."""
    found = {number: LocalChannel(wants_confirms=True, publish_no=3) for number in record.channels}
    for channel in found.values():
        channel.confirms.fresh = [(1, True), (3, True)]
        channel.confirms.take()
    return found


class Observed:
    """The report of member `name` on the rig's cluster; `sent` are its datagrams."""

    def __init__(self, name: str = "a", rig: Rig | None = None) -> None:
        self.rig = rig or Rig()
        self.now = 1000.0
        self.sent: list[tuple[Member, bytes]] = []
        self.links: list[Link] = []
        self.figures: Figures = dict.fromkeys(FIGURES, 1.0)
        self.me = next(member for member in MEMBERS if member.name == name)
        machine = self.rig.machines[name]
        primary = SimpleNamespace(
            caught_up_names=frozenset("abc"), mark=SimpleNamespace(without_data=frozenset()),
            members=MEMBERS, active=True,
        )  # fmt: skip
        self.fake = SimpleNamespace(
            me=self.me, serving=True, primary=primary, replica=SimpleNamespace(machine=machine),
            submissions=SimpleNamespace(session=machine.sessions[name].session),
            promise=SimpleNamespace(voters=("a", "b", "c")),
        )  # fmt: skip
        controller = cast("Controller", self.fake)
        self.members = MemberFigures(
            self.me, primary, lambda: self.fake.submissions.session,
            lambda: self.fake.replica.machine.connections, lambda: dict(self.figures),
            lambda: list(self.links),
            lambda to, payload: self.sent.append((to, payload)),
        )  # fmt: skip
        self.statistics = Statistics(controller, self.members, lambda: round(self.now * 1000))

    def sweep(self, seconds: float = 1.0, more: Callable[[], bool] = lambda: True) -> None:
        """Let time pass, and sweep once."""
        self.now += seconds
        self.statistics.step(self.now, more)
        self.members.step(self.now)

    @property
    def machine(self) -> Machine:
        """The replicated state at this member."""
        machine: Machine = self.fake.replica.machine
        return machine

    def metrics(self) -> "Metrics":
        """The metrics of this member, whose clients are those of its session in the rig."""
        links = [
            SimpleNamespace(
                conn=key[1], received=100, sent=50,
                client=SimpleNamespace(is_publisher=True, channels=local_channels(record)),
            )
            for key, record in self.machine.connections.items()
            if record.local
        ]  # fmt: skip
        counters = dict.fromkeys(("confirmed", "bytes_in", "bytes_out"), 3)
        clients = SimpleNamespace(
            counters=counters, auth_counters={"asked": 3}, links=lambda: links,
            confirm_took=Histogram(),
        )  # fmt: skip
        observed = SimpleNamespace(
            statistics=self.statistics, machine=self.machine, commit_took=Histogram(),
            figures=lambda: self.figures,
        )  # fmt: skip
        return Metrics(
            cast("Observed_", observed), cast("Connections", clients), self.me.name, "test",
            lambda: {"requests": 5}, lambda: {"moved": 7},
            lambda: [("member-down", "warning", 1), ("no-quorum", "critical", 0)],
        )  # fmt: skip
