"""Roles in an active-passive cluster, on a scripted ring (G25)."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from broker.exit_codes import Exit
from broker.options.modes.active_passive import ActivePassiveOptions
from broker.replication.durable_gate import Backups
from broker.roles.active_passive import AGAIN_S, ActivePassive, Followed, candidates
from broker.roles.by_ring import STEP_S, ByRing
from broker.roles.choice import Standalone
from broker.roles.role_table import MOVES, IllegalMove, Role, way
from tests.support.amqp_peer import method, opening
from tests.support.gateway_loop import Loop, Peer
from tests.support.scripted_views import Bus, hello

QPID = {
    (Role.STANDALONE, Role.JOINING), (Role.JOINING, Role.CATCHUP), (Role.JOINING, Role.RECOVERING),
    (Role.CATCHUP, Role.READY), (Role.READY, Role.RECOVERING), (Role.READY, Role.CATCHUP),
    (Role.RECOVERING, Role.ACTIVE),
}  # fmt: skip
"""The legal moves of the original."""


class Door:
    """One member's clients: what they are told."""

    def __init__(self) -> None:
        self.reason, self.briefly = "", False

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        assert not holds
        self.reason, self.briefly = reason, briefly


class Cluster:
    """Members on a scripted ring, each with its role."""

    def __init__(self, names: str = "a b c", *, automatic: bool = True, url: str = "") -> None:
        self.bus, self.names, self.now = Bus(), names, 0.0
        self.drained: set[str] = set()
        self.leased, self.stopped = set(names.split()), list[str]()
        self.lines: dict[str, list[str]] = {}
        self.doors: dict[str, Door] = {}
        self.members: dict[str, ActivePassive] = {}
        options = ActivePassiveOptions(automatic=automatic, public_url=url, needless=())
        for name in names.split():
            self.bus.start(name, size=len(names.split()))
            self.doors[name], self.lines[name] = Door(), []
            self.members[name] = self._member(name, options)
        self.bus.view(names)
        self.bus.run(names)

    def _member(self, name: str, options: ActivePassiveOptions) -> ActivePassive:
        def stop(_code: Exit, reason: str) -> None:
            self.stopped.append(reason)

        core = self.bus.cores[name]
        return ActivePassive(
            ByRing(options, core, lambda: self.drained), core, self.doors[name],
            drained=lambda: self.drained, stop=stop, note=self.lines[name].append,
            may_reply=lambda: core.serving and core.primary.active and name in self.leased,
        )  # fmt: skip

    def change(self, names: str) -> None:
        self.names = names
        self.bus.change(names)

    def beat(self, seconds: float = 0.01) -> None:
        """Two rounds: the second sees the requests of the first."""
        for _ in range(2):
            self.now += seconds
            for name in self.names.split():
                self.members[name].follow(self.now)
                self.bus.cores[name].flush()
            self.bus.run(self.names)
        assert not self.stopped

    def roles(self) -> str:
        return " ".join(f"{name}:{self.members[name].role.value}" for name in self.names.split())


def test_the_originals_transitions_are_legal() -> None:
    ours = {(old, new) for old, following in MOVES.items() for new in following}
    assert ours >= QPID
    assert MOVES.keys() == set(Role)
    assert all(new is not Role.STANDALONE for _, new in ours)


def test_every_transition_is_legal() -> None:
    for old in Role:
        for new in Role:
            if new is Role.STANDALONE:
                continue
            path = [old, *way(old, new)]
            assert path[-1] is new
            assert all(after in MOVES[before] for before, after in pairwise(path))
    assert way(Role.JOINING, Role.ACTIVE) == [Role.RECOVERING, Role.ACTIVE]
    assert way(Role.RECOVERING, Role.CATCHUP) == [Role.JOINING, Role.CATCHUP]
    with pytest.raises(IllegalMove, match="Illegal state transition: active -> standalone"):
        way(Role.ACTIVE, Role.STANDALONE)


def test_the_ring_chooses_one_active_member_and_replaces_it_when_gone() -> None:
    """G25."""
    cluster = Cluster()
    cluster.beat()
    assert cluster.roles() == "a:active b:ready c:ready"
    stated = [cluster.members[name].status()["primary"] for name in "abc"]
    assert stated == [True, False, False], "qpid-ha status --is-primary"
    assert cluster.doors["a"].reason == ""
    assert "'a' is the active member" in cluster.doors["b"].reason
    cluster.change("b c")
    cluster.beat()
    assert cluster.roles() == "b:active c:ready"
    assert cluster.doors["b"].reason == ""
    assert "'b' is the active member" in cluster.doors["c"].reason
    assert "the active member is b, was none" in cluster.lines["c"]
    moves = [line for line in cluster.lines["b"] if line.startswith("role: ")]
    assert moves[-2:] == ["role: recovering, was ready", "role: active, was recovering"]


def test_the_active_member_stays_active_as_others_come_and_go() -> None:
    cluster = Cluster()
    cluster.beat()
    cluster.change("a c")
    cluster.beat()
    cluster.change("a b c")
    cluster.beat()
    assert cluster.roles() == "a:active b:ready c:ready"


def test_a_member_without_a_majority_disconnects_its_clients() -> None:
    """G25: and it is active again if nobody took over meanwhile."""
    cluster = Cluster()
    cluster.beat()
    cluster.change("a")
    cluster.beat()
    assert cluster.roles() == "a:joining"
    assert "no member is active" in cluster.doors["a"].reason
    assert not cluster.doors["a"].briefly
    assert cluster.members["a"].status()["primary"] is False


def test_a_member_without_a_lease_is_not_active() -> None:
    """G25: other members may have gone on without its knowledge."""
    cluster = Cluster()
    cluster.beat()
    cluster.leased = set()
    status = cluster.members["a"].status()
    assert (status["status"], status["primary"]) == ("recovering", False)
    cluster.beat()
    assert cluster.roles() == "a:recovering b:ready c:ready"
    assert cluster.doors["a"].reason == "", "its clients stay and wait"


def test_clients_wait_for_a_member_about_to_be_active() -> None:
    cluster = Cluster()
    for name in "abc":
        cluster.members[name].follow(1.0)
    assert {cluster.doors[name].briefly for name in "abc"} == {True}
    cluster.beat()
    assert {cluster.doors[name].briefly for name in "abc"} == {False}


def test_the_next_candidate_takes_over_if_the_first_does_not() -> None:
    cluster = Cluster()
    rule = cluster.members["a"]._rule
    assert isinstance(rule, ByRing)
    rule.automatic = False  # it is drained, and nobody heard of it
    cluster.beat(STEP_S / 3)
    assert cluster.roles() == "a:ready b:ready c:ready"
    cluster.beat(STEP_S)
    assert cluster.roles() == "a:ready b:active c:ready"


def test_a_drained_member_gives_up_the_role_and_another_takes_it() -> None:
    """G25."""
    cluster = Cluster()
    cluster.beat()
    cluster.drained = {"a"}
    cluster.members["a"].follow(cluster.now)
    assert cluster.members["a"].role is Role.READY, "before the others hear of it"
    assert "is a backup" in cluster.doors["a"].reason
    cluster.drained = set()
    cluster.members["a"].follow(cluster.now)
    assert cluster.members["a"].role is Role.READY, "it has already ordered that"
    cluster.drained = {"a"}
    cluster.beat()
    cluster.beat()
    assert cluster.roles() == "a:ready b:active c:ready"
    cluster.drained = set()
    cluster.beat(AGAIN_S)
    assert cluster.roles() == "a:ready b:active c:ready"


def test_a_formerly_drained_member_can_be_active_again_in_the_same_view() -> None:
    """Maintenance of one member after the other."""
    cluster = Cluster()
    cluster.beat()
    for drained, roles in (
        ("a", "a:ready b:active c:ready"), ("b", "a:active b:ready c:ready"),
        ("a", "a:ready b:active c:ready"), ("b", "a:active b:ready c:ready"),
    ):  # fmt: skip
        cluster.drained = {drained}
        for _ in range(4):
            cluster.beat(AGAIN_S / 4)
        assert cluster.roles() == roles
        cluster.drained = set()
        cluster.beat()
        assert cluster.roles() == roles


def test_it_can_be_promoted_again_manually() -> None:
    cluster = Cluster(automatic=False)
    cluster.beat()
    for _ in range(2):
        cluster.drained = set()
        cluster.members["a"].promote()
        cluster.bus.run(cluster.names)
        cluster.beat(AGAIN_S)
        assert cluster.roles() == "a:active b:ready c:ready"
        cluster.drained = {"a"}
        cluster.beat(AGAIN_S)
        cluster.beat()
        assert cluster.roles() == "a:ready b:ready c:ready"


def test_a_member_undrained_before_it_gave_up_leaves_one_active() -> None:
    cluster = Cluster()
    cluster.beat()
    cluster.drained = {"a"}
    cluster.members["a"].follow(cluster.now)
    cluster.drained = set()
    cluster.beat(STEP_S)
    cluster.beat(STEP_S)
    assert cluster.roles() == "a:ready b:active c:ready", "it took the role just now"


def test_the_role_does_not_circulate_at_the_speed_of_the_ring() -> None:
    """Whatever the members believe: here every member that has the role is drained."""
    cluster = Cluster("a b")
    rounds = 100
    for _ in range(rounds):
        cluster.beat(AGAIN_S / 50)
        cluster.drained = {cluster.bus.cores["a"].replica.machine.active} - {""}
    orders = [line for line in cluster.lines["a"] if line.startswith("the active member is")]
    seconds = rounds * 2 / 50
    assert 2 <= len(orders) <= 2 * 2 * (seconds + 1), orders  # each may give and take once in one


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("stays", [False, True])
def test_clients_waiting_for_a_view_are_not_sent_to_a_lost_member(
    automatic: bool, stays: bool
) -> None:
    """G25: the turn that applies the activation admits waiting clients, and then follows
    the state."""
    cluster = Cluster(automatic=automatic)
    cluster.beat()
    cluster.members["a"].promote()
    cluster.bus.run(cluster.names)
    cluster.beat()
    assert cluster.roles() == "a:active b:ready c:ready"
    loop = Loop()
    backup, gateway = cluster.members["b"], loop.gateway
    backup._clients, backup._told = gateway, None
    rest = "a b" if stays else "b c"
    cluster.names = rest
    cluster.bus.transitional(rest)
    loop.outbox.fence()
    gateway.admission.admit_waiting(soon=True)
    backup.follow(cluster.now)
    peer = Peer(loop)
    peer.send(opening(), method(1, "channel.open"))

    cluster.bus.view(rest)
    cluster.bus.run(rest)
    assert cluster.bus.cores["b"].serving
    loop.outbox.unfence()
    gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert not peer.client.wants_close, "the old state was announced, and may be over"
    cluster.beat()
    gateway.admission.admit_waiting(soon=False)
    loop.turn()
    if automatic and not stays:
        assert cluster.roles() == "b:active c:ready"
        assert peer.client.conn
        return
    code, text = peer.take()[-1].args[:2]
    assert code == 320
    assert ("'a' is the active member" if stays else "qpid-ha promote") in str(text)


def test_an_operator_promotes_if_the_ring_does_not() -> None:
    cluster = Cluster(automatic=False, url="amqp:tcp:10.0.0.9:5672")
    cluster.beat(AGAIN_S)
    assert cluster.roles() == "a:ready b:ready c:ready"
    assert "qpid-ha promote" in cluster.doors["a"].reason
    assert not cluster.doors["a"].briefly
    cluster.members["c"].promote()
    cluster.bus.run(cluster.names)
    cluster.beat()
    assert cluster.roles() == "a:ready b:ready c:active"
    cluster.members["c"].promote()  # it is active: nothing happens
    assert cluster.doors["a"].reason.endswith("; connect to amqp:tcp:10.0.0.9:5672")
    assert "c is the active member, and there is one at a time" in cluster.members["a"].promote()
    cluster.change("a b")
    cluster.beat(AGAIN_S)
    assert cluster.roles() == "a:ready b:ready"
    cluster.members["b"].promote()
    cluster.members["a"].promote()
    cluster.bus.run(cluster.names)
    cluster.beat()
    assert cluster.roles() == "a:ready b:active", "of two, the first in order"


def test_a_member_that_cannot_be_promoted_says_why() -> None:
    cluster = Cluster(automatic=False)
    cluster.beat()
    cluster.drained = {"a"}
    assert "qpid-cluster --undrain a" in cluster.members["a"].promote()
    cluster.change("b")
    cluster.beat()
    assert "Joining active cluster, cannot be promoted" in cluster.members["b"].promote()
    assert "--ha-cluster yes" in Standalone().promote()
    cluster.members["b"].role = Role.CATCHUP
    assert "Still catching up, cannot be promoted" in cluster.members["b"].promote()


def test_what_a_member_reports_about_all() -> None:
    cluster = Cluster()
    cluster.beat()
    status = cluster.members["b"].status()
    found = {"status": "ready", "primary": False, "settled": True, "active": "a", "id": "b"}
    assert {key: status[key] for key in found} == found
    members = status["members"]
    assert isinstance(members, list)
    roles = {one["id"]: one["status"] for one in members}
    assert roles == {"a": "active", "b": "ready", "c": "ready"}
    assert Standalone().status()["status"] == "standalone"


def waiting(cluster: Cluster, name: str) -> Backups:
    """The member waits for the disks of backups, for at most five seconds."""
    made = Backups(5.0, lambda: cluster.now, cluster.lines[name].append)
    cluster.bus.cores[name].backups = made
    return made


def test_a_promoted_member_waits_for_backups_that_were_ready_before() -> None:
    """As a recovering primary in Qpid: for backups that left with the former primary, not
    for it."""
    cluster = Cluster("a b c d e")
    backups = waiting(cluster, "c")
    cluster.beat()
    assert cluster.roles() == "a:active b:ready c:ready d:ready e:ready"
    cluster.change("c d e")
    cluster.beat()
    cluster.beat()
    assert cluster.roles() == "c:recovering d:ready e:ready"
    assert backups.expected == {"b"}
    assert "waits for b, ready before, for 5 s at most" in cluster.lines["c"]
    status = cluster.members["c"].status()
    assert (status["primary"], status["expected"]) == (True, ["b"])
    assert not cluster.doors["c"].reason, "clients are admitted"
    before = cluster.bus.shells["c"].released
    cluster.bus.cores["c"].submit(hello())
    cluster.bus.run("c d e")
    assert (cluster.bus.shells["c"].released, cluster.bus.cores["c"].release_late()) == (
        before,
        True,
    )
    cluster.now += 5.0
    assert not cluster.bus.cores["c"].release_late()
    assert cluster.bus.shells["c"].released > before
    cluster.beat()
    assert cluster.roles() == "c:active d:ready e:ready"
    assert cluster.lines["c"][-2].startswith("confirms do not wait any more for b to come back")


def test_a_member_that_gave_the_role_up_waits_for_no_backup() -> None:
    """Confirms of an operator's clients there, and of shovels, would wait for one that is gone."""
    cluster = Cluster("a b c d e")
    backups = waiting(cluster, "c")
    cluster.beat()
    cluster.change("c d e")
    cluster.beat()
    assert backups.expected == {"b"}
    cluster.drained = {"c"}
    cluster.beat(AGAIN_S)
    cluster.beat(AGAIN_S)
    assert cluster.roles() == "c:ready d:active e:ready"
    assert backups.expected == frozenset()


def test_a_member_without_data_is_no_candidate() -> None:
    """An arbitrator serves nobody: the others would wait for its turn."""
    promise = Cluster().bus.cores["a"].promise
    primary = SimpleNamespace(
        caught_up_names=frozenset("abc"), mark=SimpleNamespace(without_data=frozenset("a"))
    )
    controller = cast("Followed", SimpleNamespace(primary=primary, promise=promise))
    assert candidates(controller, {"c"}) == ["b"]


def test_a_returning_backup_ends_the_wait_and_one_gone_before_starts_none() -> None:
    cluster = Cluster("a b c d e")
    backups = waiting(cluster, "c")
    cluster.beat()
    cluster.change("a c d e")
    cluster.beat()
    cluster.change("c d e")
    cluster.beat()
    cluster.beat()
    assert (cluster.roles(), backups.expected) == ("c:active d:ready e:ready", frozenset())
    backups.expect({"a"})
    assert backups.reached(7, {"c": 7, "d": 7, "e": 7}) == 0
    assert backups.reached(7, {"a": 3, "c": 7, "d": 7, "e": 7}) == 3, "it is a member again"
    backups.expect({"b"})
    backups.expect(())
    assert not backups.expected, "when it gave up the role"
