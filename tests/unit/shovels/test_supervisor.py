"""Which shovels a member runs, when it tries again, and when it stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import pytest

from broker.machine.commands import Table, Value
from broker.shovels.definition import BadShovel, Link, NotDefined, Shovel
from broker.shovels.handover import HANDOVER_S
from broker.shovels.status import RUNNING, STARTING, Status, datagrams, runner
from broker.shovels.supervisor import DELETE_S, Event, Job, Shovels
from broker.shovels.upstreams import link_of, parse_upstream
from vsync.totem.events import Direct
from vsync.types import Member

VALUE: Table = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://far", "dest-queue": "b"}


@dataclass
class State:
    """The replicated state."""

    defined: int = 0
    sessions: Mapping[str, object] = field(default_factory=lambda: dict.fromkeys("abc"))
    ending: list[str] = field(default_factory=list)
    definitions: dict[str, dict[tuple[str, str], Table]] = field(
        default_factory=lambda: {"parameter": {}}
    )

    def define(self, name: str, **change: Value) -> None:
        value: Table = {**VALUE, **{key.replace("_", "-"): one for key, one in change.items()}}
        self.definitions["parameter"]["/", f"shovel/{name}"] = {"value": value}
        self.defined += 1

    def delete(self, name: str) -> None:
        del self.definitions["parameter"]["/", f"shovel/{name}"]
        self.defined += 1


@dataclass
class Attempt:
    """A started attempt."""

    job: Job
    on_event: Callable[[Event], None]
    stopped: list[bool] = field(default_factory=list)
    slow: bool = False
    """Its process takes its time to end."""
    told: bool = False
    changes: list[object] = field(default_factory=list)

    def tell(self, change: Mapping[str, object]) -> None:
        self.changes.append(change)

    def hear(self, event: Event) -> None:
        self.told = self.told or event.get("event") == "ended"
        self.on_event(event)

    def stop(self, *, at_once: bool) -> None:
        self.stopped.append(at_once)

    @property
    def ended(self) -> bool:
        return not self.slow and (bool(self.stopped) or self.told)


class Node:
    """One member."""

    def __init__(self, state: State, name: str = "a") -> None:
        self.name, self.serving, self.now, self.begun = name, True, 0.0, list[Attempt]()
        self.deleted, self.told = list[Shovel](), list[bytes]()
        self.level: Collection[str] = ()
        self.shovels = Shovels(
            name, lambda: state, lambda: self.serving, self._begin, self.deleted.append,
            self.told.append, lambda: 0, level=lambda: self.level,
        )  # fmt: skip

    def _begin(self, job: Job, tell: Callable[[Event], None]) -> Attempt:
        self.begun.append(Attempt(job, tell))
        return self.begun[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.shovels.wake(self.now)

    def told_by(self, other: Node) -> None:
        """Delivers what the other has told so far, without what it tells during the delivery."""
        for datagram in list(other.told):
            self.shovels.takes(Direct(Member(other.name, 1, ""), datagram))

    def row(self, name: str = "s") -> dict[str, object]:
        (row,) = [row for row in self.shovels.rows() if row["name"] == name]
        return row


def cluster(state: State, names: str = "abc") -> dict[str, Node]:
    """Members that have begun to serve and have let each other begin."""
    nodes = {name: Node(state, name) for name in names}
    for _ in range(2):
        talk(nodes)
    return nodes


def talk(nodes: Mapping[str, Node]) -> None:
    """One second: each member asks, all answer, and what may begin begins."""
    for seconds in (0.5, 0.5):
        for node in nodes.values():
            node.pass_time(seconds)
    for _ in range(2):
        for node in nodes.values():
            for other in nodes.values():
                if other is not node:
                    node.told_by(other)
    for node in nodes.values():
        node.pass_time(0)


def alone(members: str = "a") -> tuple[State, Node]:
    state = State(sessions=dict.fromkeys(members))
    return state, Node(state)


def test_one_member_runs_each_shovel_and_others_take_over_from_a_dead_one() -> None:
    state = State()
    names = [f"s{number}" for number in range(60)]
    for name in names:
        state.define(name)
    nodes = cluster(state)
    before = {one: [a.job.shovel.name for a in node.begun] for one, node in nodes.items()}
    assert sorted(name for some in before.values() for name in some) == sorted(names)
    assert all(len(some) > 8 for some in before.values()), "they are spread over the members"
    state.sessions = dict.fromkeys("ab")
    for name in "ab":
        nodes[name].pass_time(1)
        later = [a.job.shovel.name for a in nodes[name].begun]
        assert later[: len(before[name])] == before[name], "no other shovel moves"
        assert not any(one.stopped for one in nodes[name].begun)
    taken = [a.job.shovel.name for one in "ab" for a in nodes[one].begun[len(before[one]) :]]
    assert sorted(taken) == sorted(before["c"])


def test_a_member_without_the_state_runs_none() -> None:
    """An arbitrator never has the state; a joining member gets its share once it has. `c` is
    one."""
    state = State()
    names = [f"s{number}" for number in range(30)]
    for name in names:
        state.define(name)
    nodes = {name: Node(state, name) for name in "ab"}
    for node in nodes.values():
        node.level = frozenset("ab")
    talk(nodes)
    begun = {one: [a.job.shovel.name for a in node.begun] for one, node in nodes.items()}
    assert sorted(begun["a"] + begun["b"]) == sorted(names)
    assert {row["node"] for row in nodes["a"].shovels.rows()} == {"a", "b"}
    for node in nodes.values():
        node.level = frozenset("abc")
        node.pass_time(0.1)
    left = [a.job.shovel.name for node in nodes.values() for a in node.begun if not a.stopped]
    assert sorted(left) == [one for one in sorted(names) if runner("abc", "/", one) != "c"]


def test_the_order_of_sessions_does_not_matter() -> None:
    assert runner(["a", "b", "c"], "/", "s") == runner(["c", "a", "b"], "/", "s")
    assert runner([], "/", "s") == ""


def test_a_member_that_does_not_serve_stops_at_once_and_begins_again_later() -> None:
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.serving = False
    node.pass_time(0.1)
    assert [one.stopped for one in node.begun] == [[True]]
    node.begun[0].hear({"event": "running"})  # still on its way
    node.serving = True
    node.pass_time(0.1)
    assert len(node.begun) == 2
    assert node.row()["state"] == "starting"


def test_an_attempt_begins_when_the_process_of_the_last_one_has_ended() -> None:
    """That process kept messages of the source, and later messages overtook them."""
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.begun[0].slow = True
    for again in (lambda: state.define("s", dest_queue="c"), lambda: state.define("s"),
                  lambda: node.shovels.restart(("/", "s"))):  # fmt: skip
        again()
        node.pass_time(1)
    state.delete("s")
    node.pass_time(1)
    state.define("s")
    node.pass_time(4)
    assert len(node.begun) == 1
    node.begun[0].slow = False
    node.pass_time(0.1)
    assert len(node.begun) == 2


def test_a_joining_member_begins_when_the_previous_runner_has_ended() -> None:
    state = State(sessions=dict.fromkeys("ab"))
    names = [f"s{number}" for number in range(60)]
    for name in names:
        state.define(name)
    nodes = cluster(state, "ab")
    running = [one for node in nodes.values() for one in node.begun]
    assert len(running) == 60
    for one in running:
        one.slow = True
    state.sessions = dict.fromkeys("abc")
    nodes["c"] = Node(state, "c")
    for _ in range(3):
        talk(nodes)
    handed = [one for one in running if one.stopped]
    assert len(handed) > 8
    assert not nodes["c"].begun
    for one in handed[:-1]:
        one.slow = False
    talk(nodes)
    begun = {one.job.shovel.name for one in nodes["c"].begun}
    assert begun == {one.job.shovel.name for one in handed[:-1]}
    nodes["c"].pass_time(HANDOVER_S)  # no answer at all: the attempt is killed by then
    assert len(nodes["c"].begun) == len(handed)


def test_it_begins_when_messages_of_a_dead_member_are_back_in_the_queue() -> None:
    """G24: messages held by many clients of that member return over several positions, and a
    consumer that came meanwhile took later messages first."""
    state, node = alone()
    state.define("s")
    state.ending = ["a connection of its own, or of any client"]
    node.pass_time(1)
    assert not node.begun
    state.ending = []
    node.pass_time(0.1)
    assert len(node.begun) == 1


def test_a_joining_member_does_not_wait_for_members_that_are_gone() -> None:
    state = State(sessions=dict.fromkeys("ab"))
    for number in range(20):
        state.define(f"s{number}")
    node = Node(state, "b")
    node.pass_time(1)
    assert not node.begun
    state.sessions = {"b": None}
    node.pass_time(0.1)
    assert len(node.begun) == 20


def test_a_stopping_member_ends_attempts_in_order_and_kills_the_rest() -> None:
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.begun[0].slow = True
    assert not node.shovels.finish()
    state.define("late")
    node.pass_time(0.1)
    assert not node.shovels.finish()
    assert node.begun[0].stopped == [False]
    node.serving = False
    node.pass_time(0.1)
    assert node.begun[0].stopped == [False, True]
    node.begun[0].slow = False
    assert node.shovels.finish()
    assert len(node.begun) == 1


def test_a_change_restarts_a_shovel_and_a_deletion_ends_it_in_order() -> None:
    state, node = alone()
    state.define("s")
    state.define("other")
    node.pass_time(1)
    state.define("s", dest_queue="c")
    node.pass_time(1)
    by_name = [(one.job.shovel.name, one.stopped) for one in node.begun]
    assert sorted(by_name) == [("other", []), ("s", []), ("s", [False])]
    state.delete("s")
    node.pass_time(1)
    assert node.begun[-1].stopped == [False]
    assert [row["name"] for row in node.shovels.rows()] == ["other"]


def test_pauses_grow_and_shrink_again_after_a_good_run() -> None:
    state, node = alone()
    state.define("s", reconnect_delay=2)
    node.pass_time(1)
    pauses = []
    for _ in range(8):
        node.begun[-1].hear({"event": "running"})  # and fails as soon as anything moves
        node.begun[-1].hear({"event": "ended", "why": "destination: gone"})
        assert (node.row()["state"], node.row()["reason"]) == ("terminated", "destination: gone")
        begun, since = len(node.begun), node.now
        while len(node.begun) == begun:
            node.pass_time(1)
        pauses.append(node.now - since)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    node.begun[-1].hear({"event": "running"})
    assert node.row()["state"] == "running"
    node.pass_time(40)
    node.begun[-1].hear({"event": "ended", "why": "gone"})
    begun = len(node.begun)
    node.pass_time(2)
    assert len(node.begun) == begun + 1


def test_a_delay_of_zero_means_no_retry_until_an_operator_restarts_it() -> None:
    state, node = alone()
    state.define("s", reconnect_delay=0)
    node.pass_time(1)
    node.begun[0].hear({"event": "ended", "why": "gone"})
    node.pass_time(1000)
    assert len(node.begun) == 1
    assert node.shovels.restart(("/", "s"))
    node.pass_time(1)
    assert len(node.begun) == 2
    assert not node.shovels.restart(("/", "unknown"))


def test_a_restarted_shovel_tries_again_after_its_shortest_pause() -> None:
    """The operator has mended something: the pauses of the failures before count no more."""
    state, node = alone()
    state.define("s", reconnect_delay=2)
    for _ in range(5):
        node.pass_time(60)
        node.begun[-1].hear({"event": "ended", "why": "gone"})
    assert node.shovels.restart(("/", "s"))
    node.pass_time(0.1)
    assert len(node.begun) == 6
    node.begun[-1].hear({"event": "ended", "why": "gone"})
    node.pass_time(2)
    assert len(node.begun) == 7


def test_a_member_that_has_not_heard_of_a_new_one_lets_nobody_begin() -> None:
    """By its state it still runs the shovel, and is just between two attempts."""
    ahead, behind = State(sessions=dict.fromkeys("bc")), State(sessions={"b": None})
    for state in (ahead, behind):
        state.define("u")
    assert runner("bc", "/", "u") == "c"
    nodes = {"b": Node(behind, "b"), "c": Node(ahead, "c")}
    nodes["b"].pass_time(1)
    nodes["b"].begun[0].hear({"event": "ended", "why": "gone"})
    talk(nodes)
    talk(nodes)
    assert not nodes["c"].begun
    behind.sessions = ahead.sessions
    talk(nodes)
    assert len(nodes["c"].begun) == 1


def test_final_answers_of_the_destination_are_kept_for_the_next_attempt() -> None:
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.begun[0].hear({"event": "ended", "why": "nack", "doubtful": {"q": [3, 7]}})
    node.pass_time(6)
    node.begun[1].hear({"event": "ended", "why": "nack", "doubtful": {"r": [-1, 1]}})
    node.pass_time(60)
    assert node.begun[2].job.doubtful == {"q": [3, 7], "r": [-1, 1]}
    assert [one.job.number for one in node.begun] == [0, 1, 2]


def test_text_of_a_peer_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.begun[0].hear({"event": "running"})
    node.begun[0].hear({"event": "blocked", "why": "full\n\x1b[31m"})
    assert node.row()["blocked_status"] == "blocked"
    node.begun[0].hear({"event": "bad\nkind"})
    node.begun[0].hear({"event": "ended", "why": "gone\n2026-01-01 critical\x1b[31m"})
    assert node.row()["reason"] == "gone?2026-01-01 critical?[31m"
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(caplog.records) > 1


def test_a_finished_shovel_asks_until_it_is_deleted() -> None:
    state, node = alone()
    state.define("s", src_delete_after=3)
    node.pass_time(1)
    node.begun[0].hear({"event": "moved", "count": 3})
    node.begun[0].hear({"event": "ended", "why": "all is moved", "done": True})
    node.pass_time(0.1)
    assert len(node.deleted) == 1
    node.pass_time(DELETE_S)
    assert len(node.deleted) == 2
    assert len(node.begun) == 1
    state.delete("s")
    node.pass_time(DELETE_S)
    assert len(node.deleted) == 2
    assert node.shovels.counters["moved"] == 3


def test_members_tell_one_another_the_states_of_their_shovels() -> None:
    state = State()
    state.define("s")
    nodes = cluster(state)
    (running,) = [name for name, node in nodes.items() if node.begun]
    asked = nodes["a" if running != "a" else "b"]
    nodes[running].begun[0].hear({"event": "running"})
    nodes[running].begun[0].hear({"event": "moved", "count": 12})
    nodes[running].begun[0].hear({"event": "blocked", "why": "disk"})
    assert asked.row()["state"] == "starting"
    nodes[running].pass_time(3)
    sender = Member(running, 1, "")
    assert asked.shovels.takes(Direct(sender, nodes[running].told[-1]))
    row = asked.row()
    assert (row["state"], row["node"], row["forwarded"]) == ("running", running, 12)
    assert row["blocked_status"] == "blocked"
    asked.pass_time(30)
    assert asked.row()["state"] == "starting", "a state that is not repeated is not shown"
    # A restart reaches the member that runs it.
    assert asked.shovels.restart(("/", "s"))
    assert nodes[running].shovels.takes(Direct(sender, asked.told[-1]))
    nodes[running].pass_time(1)
    assert [one.stopped for one in nodes[running].begun] == [[False], []]


def test_datagrams_of_others_and_malformed_ones_are_ignored() -> None:
    _, node = alone()
    sender = Member("b", 1, "")
    assert not node.shovels.takes(Direct(sender, b"Of..."))
    no_keys = (b"Sq", b"Sf\xc1", b"Sq\x93\x01\x02\x03", b"Sf\x91\x91\x01")
    for nonsense in (*no_keys, b"Sh", b"Sh\x93\x01\x02\x03", b"Sh\xc1", b"Sr\xff\xff"):
        assert node.shovels.takes(Direct(sender, nonsense))


def test_an_invalid_definition_of_an_older_release_is_shown_and_not_run() -> None:
    state, node = alone()
    state.definitions["parameter"]["/", "shovel/s"] = {"value": 3}
    state.defined += 1
    node.pass_time(1)
    assert not node.begun
    assert node.row()["state"] == "terminated"
    assert "define it anew" in str(node.row()["reason"])


def test_attempts_of_deleted_shovels_are_forgotten() -> None:
    """Each kept its task and its connections in memory, for as long as its member ran."""
    state, node = alone()
    for number in range(9):
        state.define(f"s{number}")
        node.pass_time(1)
        state.delete(f"s{number}")
        node.pass_time(1)
    assert len(node.begun) == 9
    assert len(node.shovels._handover._last) == 1


def test_a_status_that_is_not_repeated_is_forgotten() -> None:
    """It was shown, and kept, for as long as its member reported any other shovel."""
    state = State(sessions=dict.fromkeys("ab"))
    node, sender = Node(state), Member("b", 1, "")
    names = [name for name in map(str, range(20)) if runner("ab", "/", name) == "b"]
    for name in names[:2]:
        state.define(name)
        for datagram in datagrams([(("/", name), Status(RUNNING))]):
            node.shovels.takes(Direct(sender, datagram))
    assert [node.row(name)["state"] for name in names[:2]] == [RUNNING, RUNNING]
    for _ in range(6):
        node.pass_time(2)
        for datagram in datagrams([(("/", names[0]), Status(RUNNING))]):
            node.shovels.takes(Direct(sender, datagram))
    assert [node.row(name)["state"] for name in names[:2]] == [RUNNING, STARTING]
    assert len(node.shovels._heard["b"]) == 1


def test_the_end_of_the_member_ends_all_attempts() -> None:
    state, node = alone()
    state.define("s")
    node.pass_time(1)
    node.shovels.close()
    node.pass_time(1)
    assert [one.stopped for one in node.begun] == [[True]]


KEY = ("/", "exchange", "x", "far")


class Linked:
    """A federation with one link, and what its process is told of this side."""

    def __init__(self) -> None:
        self.shovel = self.link()
        self.found: dict[tuple[str, ...], Shovel | BadShovel] = {KEY: self.shovel}
        self.changes: list[dict[str, object] | None] = [{"bind": [1]}]
        self.looks_late = False
        self._looked = self.found

    def link(self, uri: str | list[str] = "amqp://far") -> Shovel:
        upstream = parse_upstream("far", {"uri": uri})
        return link_of(upstream, "/", Link("exchange", "x", "far", "x", "near", 1, False, True))

    def links(self, _now: float, *, afresh: bool) -> dict[tuple[str, ...], Shovel | BadShovel]:
        if afresh or not self.looks_late:
            self._looked = self.found
        return self._looked

    def local_side(self, _shovel: Shovel) -> Linked:
        return self

    def change(self) -> dict[str, object] | None:
        return self.changes.pop(0) if self.changes else None


def linked(members: str = "a") -> tuple[Linked, Node]:
    state, node = alone(members)
    federation = Linked()
    node.shovels = Shovels(
        "a", lambda: state, lambda: node.serving, node._begin, node.deleted.append,
        node.told.append, lambda: 0, federation,
    )  # fmt: skip
    return federation, node


def test_a_link_is_told_everything_at_its_start_and_then_changes() -> None:
    federation, node = linked()
    node.pass_time(1)
    (attempt,) = node.begun
    assert attempt.job.here == {"bind": [1]}
    federation.changes += [{"bind": [2]}, None, {"unbind": [1]}]
    for _ in range(4):
        node.pass_time(0.1)
    assert attempt.changes == [{"bind": [2]}, {"unbind": [1]}]
    attempt.hear({"event": "running"})
    attempt.hear({"event": "moved", "count": 3})
    (row,) = node.shovels.link_rows()
    assert (row["key"], row["state"], row["forwarded"]) == (KEY, "running", 3)
    assert node.shovels.rows() == []
    assert node.shovels.counters["link_moved"] == 3
    assert node.shovels.counters["moved"] == 0


def test_a_removed_link_tidies_up_at_its_upstream_and_a_moved_one_does_not() -> None:
    federation, node = linked()
    node.pass_time(1)
    federation.found = {KEY: replace(federation.shovel, prefetch=3)}
    node.pass_time(1)
    assert (node.begun[0].changes, node.begun[0].stopped) == ([], [False])
    federation.found = {KEY: federation.link("amqp://elsewhere")}
    node.pass_time(1)
    assert (node.begun[1].changes, node.begun[1].stopped) == ([{"ends": True}], [False])
    other = replace(federation.link("amqp://elsewhere"), source_queue="federation: y -> near")
    federation.found = {KEY: other}
    node.pass_time(1)
    assert node.begun[2].changes == [{"ends": True}], "nobody takes from the former queue there"
    federation.found = {KEY: BadShovel("its definition is none")}
    node.pass_time(1)
    assert node.begun[3].changes == [], "it may be defined again"
    (row,) = node.shovels.link_rows()
    assert (row["state"], row["reason"]) == ("terminated", "its definition is none")
    assert len(node.begun) == 4


@pytest.mark.parametrize("found", [{}, {KEY: NotDefined("there is no upstream")}])
def test_a_link_no_longer_wanted_tidies_up(
    found: dict[tuple[str, ...], Shovel | BadShovel],
) -> None:
    federation, node = linked()
    node.pass_time(1)
    federation.found = found
    node.pass_time(1)
    assert (node.begun[0].changes, node.begun[0].stopped) == ([{"ends": True}], [False])


def test_a_link_to_the_same_cluster_by_other_uris_removes_nothing() -> None:
    """Messages published there before the next attempt has begun must wait in its queue."""
    federation, node = linked()
    node.pass_time(1)
    for uri in ("amqp://link:new@far", ["amqp://other", "amqp://far"], "amqp://other?heartbeat=5"):
        federation.found = {KEY: federation.link(uri)}
        node.pass_time(1)
    assert len(node.begun) == 4
    assert [one.changes for one in node.begun] == [[]] * 4
    federation.found = {KEY: federation.link("amqp://other/vhost")}
    node.pass_time(1)
    assert node.begun[3].changes == [{"ends": True}]


def test_a_link_removed_while_disconnected_logs_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation, node = linked()
    node.pass_time(1)
    node.begun[0].hear({"event": "ended", "why": "source: gone"})
    federation.found = {}
    node.pass_time(1)
    assert not node.begun[0].changes
    assert "'federation: x -> near' may be left at the upstream" in caplog.text


@pytest.mark.parametrize("runs", [False, True])
def test_a_link_removed_while_it_connects_logs_a_line(
    runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process fails, or is killed, before it hears that the link is gone. Then nobody named the
    queue, which grows at the upstream."""
    federation, node = linked()
    node.pass_time(1)
    if runs:
        node.begun[0].hear({"event": "running"})
    federation.found = {}
    node.pass_time(1)
    assert node.begun[0].changes == [{"ends": True}]
    told = "'federation: x -> near' may be left at the upstream" in caplog.text
    assert told != runs, "a connected one reports it itself"


def test_a_member_that_serves_again_asks_about_links_that_came_while_it_was_away() -> None:
    """Another member may still be ending its attempt: two would replace each other's exchange."""
    federation, node = linked("ac")
    federation.found = {}
    node.pass_time(1)
    node.serving = False
    node.pass_time(1)
    federation.found, federation.looks_late = {KEY: federation.shovel}, True
    node.serving = True
    node.pass_time(1)
    federation.looks_late = False
    node.pass_time(1)
    assert not node.begun
    node.pass_time(HANDOVER_S)
    assert len(node.begun) == 1


def test_links_are_restarted_by_their_full_key() -> None:
    _, node = linked()
    node.pass_time(1)
    assert not node.shovels.restart(("/", "x"))
    assert node.shovels.restart(KEY)
    sender = Member("b", 1, "")
    node.pass_time(1)
    assert node.shovels.takes(Direct(sender, b"Sr" + "\0".join(KEY).encode()))
    node.pass_time(1)
    assert len(node.begun) == 3
