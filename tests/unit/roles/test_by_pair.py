"""A pair on a scripted ring: which member is active, when, and which never is (G28, G25).

Controllers, voter changes and roles are real; the ring, the disks and the clients are the test's.
The last test draws the events at random.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from broker.exit_codes import Exit
from broker.options.modes.pair import HAC, MASTER_SLAVE, PairOptions
from broker.replication.controller import Controller
from broker.replication.voter_changes import VoterChanges
from broker.roles.active_passive import NO_PAIR, ActivePassive
from broker.roles.by_pair import FORCED_S, HEARD_S, LOOK_S, QUIET_S, ByPair
from broker.roles.choice import Standalone
from broker.roles.pair_table import Standing
from tests.support.scripted_views import Bus, hello, publish
from vsync.quorum.voter_set import voter_set
from vsync.totem.events import Marks
from vsync.types import Member, RingId

BEAT_S = 0.05
SEATS = {HAC: ("primary", "backup"), MASTER_SLAVE: ("master", "slave")}


class Clients:
    """One member's clients: whether it has any, and what they are told."""

    def __init__(self) -> None:
        self.reason, self.holds = "started", True
        self.connected = self.tries = False
        self._watches = self._heard = False

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        assert not briefly
        self.reason, self.holds = reason, holds
        if reason:
            self.connected = False

    def watch(self, *, on: bool) -> None:
        self._watches, self._heard = on, False

    def heard(self) -> bool:
        assert self._watches
        self._heard = self._heard or self.tries or self.connected
        return self._heard


class Pair:
    """Two members, a and b; a is the primary or the master."""

    def __init__(self, mode: str = HAC, *, ends: bool = False) -> None:
        self.bus, self.now, self.mode, self.ends = Bus(), 0.0, mode, ends
        self.members: dict[str, ActivePassive] = {}
        self.roles: dict[str, ByPair] = {}
        self.again_s: dict[str, float | None] = {}  # when to follow it again
        self.changes: dict[str, VoterChanges] = {}
        self.clients = {"a": Clients(), "b": Clients()}
        self.lines: list[str] = []
        self.drained: set[str] = set()
        self.near = False  # whether the ring hears the peer, in the view or not
        self.stopped: dict[str, str] = {}
        self.side: dict[str, str] = {}  # each living member and the members of its view
        self.incarnation = 0
        self._rings: dict[str, tuple[RingId, int]] = {}

    @property
    def kept(self) -> str:
        return "b" if self.mode == HAC else "a"

    def start(self, *names: str) -> None:
        """Start members, each alone at first."""
        for name in names:
            self.incarnation += 1
            requested = (f"@pair={self.kept}",)
            if name in self.bus.cores:  # what each commit writes beside the state
                self.bus.shells[name].disk = self.bus.cores[name].promise
            self.bus.start(
                name, size=2, keep=True, requested=requested, incarnation=self.incarnation
            )
            self._attach(name, self.bus.cores[name])
            self._view(name, name)
        self.beat()

    def _attach(self, name: str, core: Controller) -> None:
        self.clients[name] = Clients()
        seat = SEATS[self.mode][name == "b"]
        options = PairOptions(self.mode, seat, "ab".replace(name, ""), self.kept, self.ends, 1.0)

        def stop(_code: Exit, reason: str) -> None:
            self.stopped[name] = reason

        self.roles[name] = roles = ByPair(
            options, core, self.clients[name], drained=lambda: self.drained, stop=stop,
            note=self.lines.append, warn=self.lines.append, hears=lambda _: self.near,
        )  # fmt: skip
        self.members[name] = ActivePassive(
            roles, core, self.clients[name], drained=lambda: self.drained, stop=stop,
            note=self.lines.append, may_reply=lambda: core.serving and core.primary.active,
        )  # fmt: skip
        self.changes[name] = VoterChanges(core)

    def _view(
        self, names: str, moved: str = "", undecided: Sequence[tuple[Member, bytes]] = ()
    ) -> None:
        """A view of these members; those that were alive move on to it from their own."""
        for name in names.split():
            if name in self.side and name not in moved.split():
                self.bus.ring, self.bus.seq = self._rings[name]
                together = [n for n in self.side[name].split() if n in names.split()]
                if name == together[0]:
                    self.bus.transitional(" ".join(together))
                    for sender, payload in undecided:
                        self.bus.deliver(names, sender, payload, transitional=names)
        self.bus.view(names)
        self.bus.run(names)
        for name in names.split():
            self.side[name] = names
            self._rings[name] = self.bus.ring, self.bus.seq

    def said(self, name: str) -> Mapping[str, object]:
        return self.roles[name].status()["pair"]

    def meet(self) -> None:
        self._view("a b")
        self.beat()

    def cut(self, on_its_way: str = "") -> None:
        """Cut them off from each other; a member receives only its own last message, if any."""
        sent, self.bus.queue = self.bus.queue, []
        for name in sorted(self.side):
            self._view(name, undecided=sent if name == on_its_way else [])
        self.beat()

    def crash(self, name: str) -> None:
        del self.side[name]
        self.clients[name].connected = False
        for other in self.side:
            self._view(other)
        self.beat()

    def beat(self, seconds: float = BEAT_S, rounds: int = 8) -> None:
        for _ in range(rounds):
            self.now += seconds
            for names in sorted(set(self.side.values())):
                first = names.split()[0]
                self.bus.ring, self.bus.seq = self._rings[first]
                self._turn(names)

    def _turn(self, names: str) -> None:
        """The members of one view do what is ordered, and then what follows from it."""
        self.bus.run(names)
        for name in names.split():
            self.changes[name].wake(self.now)
            self.again_s[name] = self.members[name].follow(self.now)
            self.bus.cores[name].flush()
        self.bus.run(names)
        for name in names.split():
            self._rings[name] = self.bus.ring, self.bus.seq

    def client(self, name: str) -> None:
        """A client tries to connect to a member, and is admitted or not."""
        clients = self.clients[name]
        clients.tries = True
        self.beat()
        clients.tries = False
        clients.connected = clients.connected or not clients.reason

    def stand(self) -> str:
        return " ".join(f"{name}:{self.roles[name].standing.value}" for name in sorted(self.side))

    def serving(self) -> list[str]:
        """The members that admit clients."""
        return [name for name in sorted(self.side) if not self.clients[name].reason]

    def send(self, name: str, number: int, *, disk: bool = True) -> bool:
        """A client at a member publishes; return whether it is confirmed."""
        core, shell, before = self.bus.cores[name], self.bus.shells[name], self.held(name)
        if not core.serving:
            return False
        commands = [publish(number)]
        if core.submissions.session not in {key[0] for key in core.replica.machine.connections}:
            commands = [*hello(), *commands]
        self.bus.ring, self.bus.seq = self._rings[name]
        core.submit(commands)
        if disk:
            self._turn(self.side[name])
        else:
            self.bus.run(self.side[name], disks=False)
            self._rings[name] = self.bus.ring, self.bus.seq
        is_there = self.held(name) > before
        return is_there and shell.released >= core.replica.history.position

    def held(self, name: str) -> int:
        """The number of messages a member has."""
        queue = self.bus.cores[name].replica.machine.vhosts["/"].queues.get("q")
        return 0 if queue is None else len(queue.ready) + len(queue.returned)


def together(mode: str = HAC, *, ends: bool = False) -> Pair:
    pair = Pair(mode, ends=ends)
    pair.start("a", "b")
    pair.meet()
    pair.beat()
    return pair


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_order_of_their_starts_does_not_matter(mode: str, order: str) -> None:
    """O2; a client that comes before is held, and told why if it takes too long."""
    pair = Pair(mode)
    pair.start(order[0])
    clients = pair.clients[order[0]]
    assert pair.stand() == f"{order[0]}:pending"
    assert clients.holds
    assert "is pending, and waits for" in clients.reason
    assert "may have gone on without this member" in str(pair.said(order[0])["reason"])
    pair.client(order[0])
    assert pair.serving() == []
    pair.start(order[1])
    pair.meet()
    pair.beat()
    assert pair.stand() == "a:active b:passive"
    assert pair.serving() == ["a"]
    assert "'a' is active" in pair.clients["b"].reason
    assert not pair.clients["b"].holds


def test_the_backup_takes_over_only_when_a_client_comes() -> None:
    """O7, O9."""
    pair = together()
    pair.crash("a")
    pair.beat(1.0)
    assert (pair.stand(), pair.serving()) == ("b:passive", [])
    assert pair.said("b")["reason"] == "the primary is here; waits for a client"
    assert pair.clients["b"].holds, "its attempt is the vote: it waits for the outcome"
    assert pair.members["b"].role.value == "joining", "alone, and perhaps for long"
    pair.client("b")
    assert pair.members["b"].role.value == "active"
    assert (pair.stand(), pair.serving()) == ("b:active", ["b"])
    assert voter_set(pair.bus.cores["b"].promise.voters).away == {"a"}


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_nobody_goes_on_alone_beside_a_peer_the_ring_hears(mode: str) -> None:
    """One stalled: each gave the other up, and a moment later they meet."""
    pair = together(mode)
    pair.client("a")
    pair.near = True
    pair.cut()
    pair.client("b")
    pair.client("a")
    assert not any(core.primary.active for core in pair.bus.cores.values())
    assert pair.again_s == {"a": LOOK_S, "b": LOOK_S}
    pair.meet()
    pair.beat()
    assert (pair.stand(), pair.serving()) == ("a:active b:passive", ["a"])
    assert not any("went on alone" in line for line in pair.lines)


def test_the_peer_is_not_waited_for_longer_than_a_merge_takes() -> None:
    """A one-way link may stay so for ever."""
    pair = together()
    pair.near = True
    pair.cut()
    pair.client("b")
    assert pair.stand() == "a:active b:passive"
    pair.beat(HEARD_S / 8)
    pair.client("b")
    assert pair.bus.cores["b"].primary.active
    assert pair.roles["b"].standing is Standing.ACTIVE


def test_a_returning_primary_defers_and_counts_again() -> None:
    """O8. Then either may be lost."""
    pair = together()
    pair.crash("a")
    pair.client("b")
    pair.start("a")
    pair.meet()
    pair.beat()
    assert (pair.stand(), pair.serving()) == ("a:passive b:active", ["b"])
    assert not voter_set(pair.bus.cores["b"].promise.voters).away
    pair.crash("b")
    pair.client("a")
    assert (pair.stand(), pair.serving()) == ("a:active", ["a"])


def test_a_returning_member_counts_again_only_when_its_store_has_a_vote() -> None:
    """G28: otherwise both could fail, return, and wait for a vote that neither has."""
    pair = together()
    pair.crash("a")
    pair.client("b")
    pair.start("a")
    shell = pair.bus.shells["a"]
    shell.store_counts = False
    pair.meet()
    pair.beat()
    core = pair.bus.cores["a"]
    assert core.serving
    for one in pair.bus.cores.values():
        assert one.promise.voters == ("a", "b", "@pair=b", "@away=a")
    shell.store_counts = True
    pair.beat()
    for one in pair.bus.cores.values():
        assert one.promise.voters == ("a", "b", "@pair=b")


def test_an_active_member_without_clients_stays_active_but_orders_nothing() -> None:
    """It may be the isolated one, with clients whose connections are merely not closed."""
    pair = together()
    pair.clients["a"].connected = False
    pair.crash("b")
    pair.beat()
    assert pair.stand() == "a:active"
    assert pair.clients["a"].reason == "", "nobody is disconnected"
    assert not pair.bus.cores["a"].primary.active
    pair.client("a")
    assert pair.bus.cores["a"].primary.active


def test_a_backup_that_loses_its_clients_is_passive_again() -> None:
    """O7: it is off the network; it becomes active with the next client."""
    pair = together()
    pair.crash("a")
    pair.client("b")
    pair.clients["b"].connected = False
    pair.beat(QUIET_S / 20)
    assert pair.stand() == "b:active"
    pair.beat(QUIET_S / 4)
    assert (pair.stand(), pair.serving()) == ("b:passive", [])
    pair.client("b")
    assert (pair.stand(), pair.serving()) == ("b:active", ["b"])


def test_a_backup_with_the_lead_gives_clients_time_to_come_back_when_its_peer_is_lost() -> None:
    """O7: ten seconds without a client count from the loss; nobody was looked for before it."""
    pair = together()
    pair.members["a"].force_passive(pair.now)
    pair.beat()
    pair.beat(FORCED_S)
    assert pair.stand() == "a:passive b:active"
    pair.crash("a")
    pair.beat(QUIET_S / 20)
    assert pair.stand() == "b:active"
    pair.beat(QUIET_S / 4)
    assert pair.stand() == "b:passive"


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_an_operator_makes_the_active_member_passive(mode: str) -> None:
    """O8, O10: its clients are disconnected and the other one takes over; and back."""
    pair = together(mode)
    pair.clients["a"].connected = True
    for old, new in (("a", "b"), ("b", "a")):
        pair.members[old].force_passive(pair.now)
        assert not pair.clients[old].connected
        pair.beat()
        assert pair.serving() == [new]
        assert pair.roles[old].standing is Standing.PASSIVE
        pair.beat(FORCED_S)
        assert pair.serving() == [new]
    assert "this member is passive, and the other one" in pair.members["b"].force_passive(pair.now)
    assert "force the other one passive" in pair.members["b"].promote()
    pair.crash("b")
    assert "the other one of the pair is gone" in pair.members["a"].force_passive(pair.now)
    assert Standalone().force_passive(0.0) == NO_PAIR


def test_a_drained_member_leaves_the_role_to_its_peer() -> None:
    pair = together()
    pair.drained = {"a"}
    pair.beat()
    pair.beat()
    assert pair.serving() == ["b"]
    pair.drained = set()
    pair.beat()
    assert pair.stand() == "a:passive b:active"


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_a_drained_member_does_not_go_on_alone_until_undrained(mode: str) -> None:
    pair = together(mode)
    pair.drained = {"b"}
    pair.crash("a")
    pair.client("b")
    pair.beat(1.0)
    assert (pair.stand(), pair.serving()) == ("b:passive", [])
    assert not pair.bus.cores["b"].primary.active
    pair.drained = set()
    pair.beat(1.0)
    assert (pair.stand(), pair.serving()) == ("b:active", ["b"])


def test_each_reports_the_number_of_both_members_connections() -> None:
    """O12: from the state both share, so nothing is exchanged for it."""
    pair = together()
    pair.clients["a"].connected = True
    assert pair.send("a", 1)
    pair.beat()
    said = [pair.said(name) for name in "ab"]
    assert [(one["connections"], one["peer_connections"]) for one in said] == [(1, 0), (0, 1)]


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_a_member_that_went_on_alone_does_so_after_a_restart(mode: str) -> None:
    """G28: what it confirmed alone is only on its disk; its peer waits."""
    pair = together(mode)
    pair.crash("a")
    pair.client("b")
    pair.beat(1.0)
    assert pair.send("b", 1)
    pair.crash("b")
    pair.start("a")
    pair.client("a")
    pair.beat(2.0)
    assert (pair.stand(), pair.serving()) == ("a:pending", [])
    pair.crash("a")
    pair.start("b")
    pair.client("b")
    pair.beat(2.0)
    assert (pair.stand(), pair.serving()) == ("b:active", ["b"])


def test_a_slave_takes_over_after_the_time_and_the_master_at_once() -> None:
    """A3: a master/slave pair does not need clients for it."""
    pair = together(MASTER_SLAVE)
    pair.crash("a")
    assert pair.serving() == []
    pair.beat(0.3)
    assert (pair.stand(), pair.serving()) == ("b:active", ["b"])
    pair = together(MASTER_SLAVE)
    pair.clients["a"].connected = True
    pair.crash("b")
    assert (pair.stand(), pair.serving()) == ("a:active", ["a"])
    assert pair.clients["a"].connected, "its clients stay"


def test_a_slave_asks_to_be_called_when_its_takeover_is_due() -> None:
    """Not at the next turn something else causes, which took a fifth of a second."""
    pair = together(MASTER_SLAVE)
    del pair.side["a"]
    pair._view("b")
    assert pair.members["b"].follow(pair.now) == 1.0
    assert pair.members["b"].follow(pair.now + 0.5) is None, "it was reported"
    assert pair.stand() == "b:passive"
    assert pair.members["b"].follow(pair.now + 1.01) is None
    assert pair.stand() == "b:active"


def test_a_slave_that_is_to_end_with_its_master_ends() -> None:
    """A3: and one that starts without its master waits."""
    pair = together(MASTER_SLAVE, ends=True)
    pair.crash("a")
    assert not pair.stopped
    pair.beat(0.3)
    assert "--shutdown-on-master-failure yes" in pair.stopped["b"]
    assert pair.serving() == []
    pair.crash("b")
    pair.stopped.clear()
    pair.start("b")
    pair.beat(2.0)
    assert not pair.stopped
    assert pair.stand() == "b:pending"
    pair.start("a")
    pair.meet()
    pair.beat()
    assert pair.stand() == "a:active b:passive"
    pair.crash("b")
    pair.beat()
    assert pair.serving() == ["a"]


def test_a_slave_with_the_lead_ends_too() -> None:
    """G28: it never takes the vote, so only the master goes on."""
    pair = together(MASTER_SLAVE, ends=True)
    pair.members["a"].force_passive(pair.now)
    pair.beat()
    pair.beat(FORCED_S)
    assert pair.serving() == ["b"]
    pair.cut()
    pair.beat(1.0)
    pair.beat(1.0)
    assert pair.serving() == ["a"]
    assert "--shutdown-on-master-failure yes" in pair.stopped["b"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_member_that_loses_its_peer_as_it_starts_takes_its_time(ends: bool) -> None:
    """It was in a primary view before anybody looked; then the time of the failure counts."""
    pair = Pair(MASTER_SLAVE, ends=ends)
    pair.start("a", "b")
    pair._view("a b")
    pair.cut()
    pair.beat(0.0)
    assert pair.serving() == []
    pair.beat(1.0)
    pair.beat(1.0)
    assert ("b" in pair.serving()) is not ends
    assert bool(pair.stopped.get("b")) is ends


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_an_orderly_stop_lets_the_peer_go_on(mode: str) -> None:
    """O3: by an ordered change, so it needs neither the vote nor the client HAC asks for."""
    pair = together(mode)
    for _ in range(6):
        if pair.changes["b"].step_aside():
            break
        pair.beat(rounds=2)
    assert pair.changes["b"].step_aside()
    pair.crash("b")
    pair.beat()
    assert pair.serving() == ["a"]
    assert pair.bus.cores["a"].primary.active
    assert pair.changes["a"].step_aside(), "no member is left to go on"
    pair.start("b")
    pair.meet()
    pair.beat()
    assert voter_set(pair.bus.cores["a"].promise.voters).away == frozenset()


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_if_both_went_on_one_history_is_kept_and_it_is_logged(mode: str) -> None:
    """Exception 1 of G28."""
    pair = together(mode)
    pair.clients["a"].connected = True
    pair.cut()
    pair.client("b")
    pair.beat(1.0)
    assert pair.serving() == ["a", "b"]
    assert pair.send("a", 1)
    assert pair.send("b", 2)
    pair.meet()
    pair.beat()
    assert pair.serving() == [pair.kept]
    said = [line for line in pair.lines if "both members of the pair went on alone" in line]
    assert len(said) == 2
    assert all(f"the history of {pair.kept} is kept" in line for line in said)
    status = pair.members["a"].status()["pair"]
    assert isinstance(status, dict)
    assert status["apart"] in said[0]
    roots = {core.replica.machine.root() for core in pair.bus.cores.values()}
    assert len(roots) == 1


@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_the_member_set_aside_confirms_nothing_of_its_own_history(
    mode: str,
) -> None:
    """G9: the other history is shorter, so its positions come again."""
    pair = together(mode)
    pair.clients["a"].connected = True
    pair.cut()
    pair.client("b")
    pair.beat(1.0)
    kept, aside = pair.kept, "a" if pair.kept == "b" else "b"
    assert pair.send(kept, 1)
    assert all(pair.send(aside, number) for number in range(30))
    core, shell = pair.bus.cores[aside], pair.bus.shells[aside]
    far, session = shell.released, core.submissions.session
    pair.meet()
    pair.beat()
    assert core.replica.history.position < far, "otherwise the test shows nothing"
    assert core.submissions.session == core.replica.machine.sessions[aside].session != session
    assert shell.sessions[-1] == core.submissions.session
    assert core.serving
    core.submit([*hello(), publish(1)])
    pair.bus.ring, pair.bus.seq = pair._rings["a"]
    pair.bus.run("a b", disks=False)
    assert 0 < shell.released < core.replica.history.position < far
    pair.bus.marks("a b")
    assert shell.released == core.replica.history.position


@pytest.mark.parametrize(
    ("took", "kept"), [("nothing", "a"), ("what waits for its disk", "a"), ("all", "b")]
)
def test_confirmed_messages_win_over_a_side_without_any(took: str, kept: str) -> None:
    """G28: the backup went on for a client that had sent nothing when the two met, or nothing that
    the disk (full, perhaps) had taken."""
    pair = together()
    pair.clients["a"].connected = True
    pair.cut()
    pair.client("b")
    pair.beat(1.0)
    assert pair.serving() == ["a", "b"]
    assert pair.send("a", 1)
    if took != "nothing":
        assert pair.send("b", 2, disk=took == "all") is (took == "all")
        assert pair.held("b") == 1
    pair.clients["b"].connected = False
    pair.meet()
    pair.beat(1.0)
    roots = {core.replica.machine.root() for core in pair.bus.cores.values()}
    assert len(roots) == 1
    assert (pair.serving(), pair.held("a")) == ([kept], 1)
    assert bool(pair.said("a")["apart"]) is (took == "all")
    assert pair.bus.shells["a" if kept == "b" else "b"].asides == 1


def test_a_message_in_flight_at_the_split_belongs_to_one_side() -> None:
    """G28: one member decides and confirms it alone; the other one never received it."""
    pair = together()
    pair.clients["a"].connected = True
    assert pair.send("a", 1)
    core = pair.bus.cores["a"]
    pair.bus.ring, pair.bus.seq = pair._rings["a"]
    core.submit([publish(2)])
    pair.cut(on_its_way="a")
    pair.client("b")
    pair.beat(1.0)
    assert pair.serving() == ["a", "b"]
    assert (pair.held("a"), pair.held("b")) == (2, 1)
    assert pair.bus.shells["a"].released == core.replica.history.position
    pair.meet()
    pair.beat(1.0)
    assert (pair.serving(), pair.held("a"), pair.held("b")) == (["a"], 2, 2)
    assert not pair.said("a")["apart"]


def test_a_member_with_a_hanging_disk_leaves_if_its_peer_goes_on() -> None:
    """G28: the peer can take the vote, so what it alone makes durable is progress."""
    pair = together()
    pair.clients["a"].connected = True
    assert pair.send("a", 1)
    a, b = (pair.bus.cores[name] for name in "ab")
    before = a.primary.durable()
    assert a.primary.durable_elsewhere() == b.primary.durable_elsewhere() == before
    pair.send("a", 2, disk=False)
    pair.bus.shells["b"].flush_disk()
    shells = pair.bus.shells
    for core in (a, b):
        core.on_output(Marks({name: shells[name].disk_history.position for name in "ab"}))
    assert a.primary.durable() == b.primary.durable_elsewhere() == before
    assert a.primary.durable_elsewhere() == b.replica.history.position > before
    pair.crash("b")
    pair.client("a")
    assert a.primary.active
    assert a.primary.durable_elsewhere() == a.primary.durable(), "a peer it could leave behind"


def test_a_client_that_came_before_the_two_met_is_no_vote_later() -> None:
    """O9: it came while the peer was gone; the peer then returned, if only for a moment."""
    pair = Pair()
    pair.start("a", "b")
    pair.client("a")
    pair.clients["a"].tries = False
    pair.bus.view("a b")  # and it breaks before anything is decided in it
    pair.side = {"a": "a b", "b": "a b"}
    pair.members["a"].follow(pair.now)
    assert not pair.clients["a"]._watches
    pair.cut()
    assert pair.clients["a"]._watches
    assert not pair.clients["a"]._heard


def _happens(pair: Pair, chance: random.Random) -> None:
    alive = sorted(pair.side)
    what = chance.choice(("crash", "start", "start", "client", "leave", "wait", "force"))
    name = chance.choice(alive) if alive else "a"
    match what:
        case "crash" if name in alive:
            pair.crash(name)
        case "start":
            for one in "ab":
                if one not in pair.side:
                    pair.start(one)
            if chance.random() < 0.8:
                pair.meet()
        case "client":
            pair.client(name)
        case "leave":
            pair.clients[name].connected = False
        case "wait":
            pair.beat(chance.choice((0.1, 1.0)))
        case "force" if name in alive:
            pair.members[name].force_passive(pair.now)
        case _:
            pass


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", [HAC, MASTER_SLAVE])
def test_random_events_without_a_split_keep_one_serving_history(mode: str, seed: int) -> None:
    """G25, G28: one member admits clients, each has all that was confirmed, and in the end one
    serves.

    A view of one is one where the peer is not alive: a crash, or a start that has not met it. With
    HAC no member that has seen no client since admits clients alone.
    """
    chance, confirmed, number = random.Random(seed), 0, 0
    pair = together(mode)
    for _ in range(40):
        if len(pair.side) == 2 and len(set(pair.side.values())) == 2:
            pair.meet()  # both are alive: the next event is that they see each other
        _happens(pair, chance)
        pair.beat()
        assert len(pair.serving()) <= 1, pair.stand()
        for name in pair.serving():
            number += 1
            confirmed += pair.send(name, number)
        for name in pair.serving():
            assert pair.held(name) >= confirmed, "a confirmed message is missing"
    pair.start(*(name for name in "ab" if name not in pair.side))
    pair.meet()
    pair.beat(1.0)
    assert len(pair.serving()) == 1
    assert not pair.said("a")["apart"], "both never went on alone"
