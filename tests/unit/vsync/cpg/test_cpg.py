"""Process groups over real nodes (G18, G19): members know each other before any message."""

from __future__ import annotations

import pytest

from tests.support.ring.virtual_network import Net
from vsync.cpg.durability import Durability
from vsync.cpg.events import Failed, GroupEvent, GroupMessage, GroupSent, GroupView, Level, Synced
from vsync.cpg.groups import Groups
from vsync.errors import GroupError, PayloadTooLarge
from vsync.quorum.voter_set import majority
from vsync.types import Guarantee, Member


class Port:
    """Stands where the layer expects a driver: a node and its clock."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name = net, name
        self.node = net.nodes[name]

    def submit(self, payload: bytes, guarantee: Guarantee) -> bool:
        return self.node.submit(payload, self.net.now, guarantee)

    def set_mark(self, mark: int) -> None:
        self.node.set_mark(mark, self.net.now)


class Office:
    """A network with a group layer on every node."""

    def __init__(self, names: str, settled: bool = True) -> None:
        self.net = Net(names)
        self.layers: dict[str, Groups] = {}
        self.events: dict[str, list[GroupEvent]] = {}
        self._at: dict[str, int] = {}
        for name in names:
            self.open(name)
        if settled:
            self.net.settle(names)
            self.run(0.1)

    def open(self, name: str) -> None:
        port = Port(self.net, name)
        self.layers[name] = Groups(port.node.me, port, pending_bytes_max=4000)
        self.events[name] = []
        self._at[name] = 0

    def run(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.005))):
            self.net.run(0.005)
            for name in list(self.net.nodes):
                new = self.net.seen[name][self._at[name] :]
                self._at[name] += len(new)
                for output in new:
                    self.events[name] += self.layers[name].on_output(output)
                    self.layers[name].invariants()
                self.net.flush(name)

    def settle(self, *sides: str) -> None:
        for _ in range(400):
            self.run(0.02)
            if self.net.settled(*sides):
                break
        self.run(0.1)

    def join(self, names: str, group: str = "g") -> None:
        for name in names:
            assert self.layers[name].join(group)
            self.net.flush(name)

    def leave(self, name: str, group: str = "g") -> None:
        assert self.layers[name].leave(group)
        self.net.flush(name)

    def mcast(
        self, name: str, data: bytes, group: str = "g", level: Level = Level.SAFE
    ) -> int | None:
        ticket = self.layers[name].mcast(group, data, level)
        self.net.flush(name)
        return ticket

    def data(self, name: str, group: str = "g") -> list[bytes]:
        return [
            e.payload for e in self.events[name] if isinstance(e, GroupMessage) and e.group == group
        ]

    def listed(self, name: str, group: str = "g") -> str:
        return "".join(m.name for m in self.layers[name].views().get(group, ()))

    def changes(self, name: str) -> list[str]:
        found = []
        for e in self.events[name]:
            if isinstance(e, GroupView):
                joined = [f"+{m} {cause.value}" for m, cause in e.joined]
                left = [f"-{m} {cause.value}" for m, cause in e.left]
                found.append("; ".join(left + joined))
        return found

    def outcome(self, name: str, ticket: int | None) -> list[GroupEvent]:
        return [
            e for e in self.events[name] if isinstance(e, GroupSent | Failed) and e.ticket == ticket
        ]


def test_joins_leaves_and_data_have_one_order_for_all() -> None:
    office = Office("abc")
    office.join("abc")
    for name in "abc":
        office.mcast(name, b"hello from " + name.encode())
    office.run(0.1)
    assert sorted(office.listed("a")) == ["a", "b", "c"], "in the order of their joins"
    assert office.listed("a") == office.listed("b") == office.listed("c")
    # Everybody sees what follows its own join, with the same positions.
    places = [
        {(e.position, e.payload) for e in office.events[n] if isinstance(e, GroupMessage)}
        for n in "abc"
    ]
    fewest = min(places, key=len)
    assert fewest
    assert all(fewest <= one for one in places)
    office.leave("b")
    office.run(0.1)
    office.mcast("a", b"after")
    office.run(0.1)
    assert office.changes("b")[-1] == "-b leave"
    assert b"after" not in office.data("b")
    assert office.data("a")[-1] == office.data("c")[-1] == b"after"
    assert office.listed("b") == office.listed("a")
    assert {*office.listed("a")} == {*"ac"}


def test_groups_are_separate_and_a_process_may_be_in_several() -> None:
    office = Office("ab")
    office.join("ab", "g")
    office.join("b", "h")
    office.run(0.1)
    office.mcast("a", b"to g")
    office.mcast("b", b"to h", "h")
    office.run(0.1)
    assert office.data("b", "h") == [b"to h"]
    assert office.data("a", "h") == []
    assert office.data("a") == office.data("b") == [b"to g"]
    assert {g: len(m) for g, m in office.layers["a"].views().items()} == {"g": 2, "h": 1}


def test_a_leave_a_crash_and_a_restart_have_different_causes() -> None:
    office = Office("abcd")
    office.join("abcd")
    office.run(0.1)
    office.leave("d")
    office.run(0.1)
    office.net.crash("b")
    office.settle("acd")
    assert office.changes("a")[-2:] == ["-d leave", "-b node down"]
    # If the new incarnation joins before the old one is missed, the cause is "process down", not
    # "node down". That is a race of joins: repeat it until the new incarnation wins.
    told: list[str] = []
    while told[-1:] != ["-c process down"]:
        assert len(told) < 20
        office.net.crash("c")
        office.net.boot("c")
        office.open("c")
        office.settle("acd")
        told.append(office.changes("a")[-1])
        office.join("c")
        office.run(0.1)
        assert office.changes("a")[-1] == "+c join"
        assert office.changes("c") == ["+c join"]
    assert {*told} <= {"-c process down", "-c node down"}
    assert office.listed("c") == "ac"


def test_after_a_merge_all_have_the_same_list_at_the_same_position() -> None:
    office = Office("abcd")
    office.join("abcd")
    office.run(0.1)
    office.net.split("ab", "cd")
    office.settle("ab", "cd")
    assert office.listed("a") == office.listed("b")
    assert {*office.listed("a")} == {*"ab"}
    assert office.listed("c") == office.listed("d")
    assert {*office.listed("c")} == {*"cd"}
    office.leave("d")
    office.run(0.1)
    for number in range(20):
        office.mcast("c", b"there %d" % number)
    office.run(0.1)
    before = {name: len(office.events[name]) for name in "abcd"}
    office.net.split()
    office.settle("abcd")
    office.mcast("c", b"to all")
    office.run(0.1)
    views = []
    for name in "abc":
        fresh = office.events[name][before[name] :]
        kinds = [type(e) for e in fresh if not isinstance(e, GroupSent)]
        # The list changes once, and only then messages follow, those of the other side included.
        assert kinds == [GroupView, Synced, GroupMessage]
        view = fresh[0]
        assert isinstance(view, GroupView)
        views.append((view.position, view.members))
    assert len(set(views)) == 1
    assert office.changes("a")[-1] == "+c node up"
    assert office.changes("c")[-1] == "+a node up; +b node up"
    assert office.data("d")[-1:] != [b"to all"]
    assert office.data("a")[-1] == office.data("c")[-1] == b"to all"


def test_a_member_that_was_away_left_and_joined_again() -> None:
    """One member is cut off briefly. It missed messages, so the others must not take it
    for present."""
    office = Office("abc")
    office.join("abc")
    office.run(0.1)
    office.net.split("ab", "c")
    office.settle("ab", "c")
    office.mcast("a", b"missed by c")
    office.run(0.1)
    office.net.split()
    office.settle("abc")
    assert office.changes("a")[-2:] == ["-c node down", "+c node up"]
    assert b"missed by c" not in office.data("c")


def test_accepted_messages_survive_a_view_change_in_order() -> None:
    """G19: no accepted message is lost or duplicated when rings break under load."""
    office = Office("abc")
    office.join("abc")
    office.run(0.1)
    tickets = []
    for number in range(60):
        tickets.append(office.mcast("a", b"%03d" % number))
        if number == 20:
            office.net.crash("c")
        if number % 20 == 5:
            office.run(0.4)
    office.settle("ab")
    assert None not in tickets
    wanted = [b"%03d" % number for number in range(60)]
    assert office.data("a") == wanted
    assert office.data("b") == wanted
    assert all(len(office.outcome("a", t)) == 1 for t in tickets)


def test_messages_that_cross_a_merge_are_void_and_sent_again() -> None:
    office = Office("abcd")
    office.join("abcd")
    office.run(0.1)
    office.net.split("ab", "cd")
    office.settle("ab", "cd")
    office.net.split()
    for round_ in range(200):
        for name in "abcd":
            office.mcast(name, b"%s %d" % (name.encode(), round_))
        if round_ < 50:
            office.net.run(0.0001)  # the rings merge within a few round trips
        else:
            office.run(0.01)
    office.settle("abcd")
    for name in "abcd":
        mine = [p for p in office.data(name) if p.startswith(name.encode())]
        assert mine == [b"%s %d" % (name.encode(), r) for r in range(200)]
    last = [office.data(n)[-100:] for n in "abcd"]
    assert last[0] == last[1] == last[2] == last[3]
    assert sum(layer.counters["sent_again"] for layer in office.layers.values())


def test_a_node_that_joined_and_crashed_leaves_nothing_behind() -> None:
    """Pitfall 29: a node crashes right after sending its list."""
    office = Office("abc")
    office.join("a")
    office.net.boot("d")
    office.open("d")
    for _ in range(200):
        office.run(0.005)
        if office.net.settled("abcd"):
            break
    office.join("d")
    office.run(0.01)
    office.net.crash("d")
    office.settle("abc")
    for name in "abc":
        assert office.listed(name) == "a"
        assert office.layers[name].synced


def test_a_full_layer_refuses_and_an_empty_one_takes_anything() -> None:
    office = Office("ab", settled=False)
    layer = office.layers["a"]
    assert layer.join("g")  # before there is a view
    assert layer.mcast("g", bytes(3000))
    assert layer.mcast("g", bytes(3000)) is None
    assert layer.leave("g") is not None
    office.settle("ab")
    assert [len(p) for p in office.data("a")] == [3000]
    assert layer.pending == 0
    assert layer.join("g")
    office.run(0.1)
    assert layer.mcast("g", bytes(100_000))
    office.settle("ab")
    assert len(office.data("a")[-1]) == 100_000


def test_durable_waits_for_a_majority_of_the_group() -> None:
    office = Office("abc")
    office.join("abc")
    office.run(0.1)
    ticket = office.mcast("a", b"precious", level=Level.DURABLE)
    office.run(0.2)
    assert office.data("c") == [b"precious"]
    assert office.outcome("a", ticket) == []
    place = office.layers["c"].position
    office.layers["c"].set_durable(place)
    office.run(0.2)
    assert office.outcome("a", ticket) == []
    office.layers["a"].set_durable(place)
    office.run(0.2)
    assert office.outcome("a", ticket) == [GroupSent(ticket or 0, place)]
    with pytest.raises(GroupError, match="not delivered yet"):
        office.layers["a"].set_durable(place + 1)


def test_durable_fails_with_a_reason_when_too_few_remain() -> None:
    office = Office("abc")
    office.join("abc")
    office.run(0.1)
    ticket = office.mcast("a", b"precious", level=Level.DURABLE)
    office.run(0.1)
    office.net.crash("b")
    office.settle("ac")
    assert office.outcome("a", ticket) == []  # a and c can still confirm it
    office.net.crash("c")
    office.settle("a")
    (failed,) = office.outcome("a", ticket)
    assert isinstance(failed, Failed)
    assert "2 of 3" in failed.reason


def test_a_mark_from_the_other_side_of_a_partition_proves_nothing() -> None:
    a, b, c = (Member(name, 1, "") for name in "abc")
    waiting = Durability()
    waiting.add(1, 10, "g", (a, b, c))
    assert waiting.gone([c]) == []
    waiting.new_ring()
    assert waiting.on_marks({"a": 10, "b": 9, "c": 99}) == []  # c continued without me
    assert waiting.on_marks({"a": 10, "b": 10, "c": 99}) == [GroupSent(1, 10)]
    assert [majority(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    # A mark that came round before I delivered the message counts too.
    waiting.add(2, 10, "g", (a, b))
    assert waiting.on_marks({"a": 10, "b": 10}) == [GroupSent(2, 10)]


def test_a_member_that_rejoined_votes_only_on_later_messages() -> None:
    """Found by the simulator: the old and the new list have the same names."""
    a, c = (Member(name, 1, "") for name in "ac")
    waiting = Durability()
    waiting.add(1, 10, "x", (a, c))
    assert [f.ticket for f in waiting.gone([c], "x")] == [1]
    waiting.add(2, 20, "x", (a, c))
    assert waiting.on_marks({"a": 20, "c": 20}) == [GroupSent(2, 20)]
    waiting.add(3, 30, "x", (a, c))
    waiting.close("x")
    assert len(waiting) == 1
    assert waiting.drop() == [3]


def test_wrong_calls_are_refused_and_garbage_is_counted() -> None:
    office = Office("ab")
    layer = office.layers["a"]
    office.join("a")
    with pytest.raises(GroupError, match="a member of it"):
        layer.join("g")
    with pytest.raises(GroupError, match="not in group 'h'"):
        layer.mcast("h", b"")
    office.leave("a")
    with pytest.raises(GroupError, match="leaving"):
        layer.mcast("g", b"")
    with pytest.raises(GroupError, match="leaving"):
        layer.join("g")
    for name in ("", "g" * 129):
        with pytest.raises(GroupError, match="1 to 128 bytes"):
            layer.join(name)
    office.run(0.1)
    office.join("a")
    with pytest.raises(PayloadTooLarge, match="at most"):
        layer.mcast("g", bytes(65 << 20))
    ring = office.net.nodes["a"].ring.seq.to_bytes(4, "little")
    named = ring + b"\x01g"
    for garbage in (
        b"", b"\x01", b"\x04\x00", b"\x04" + bytes(40), b"\x04" + ring + bytes(9),
        b"\x04" + ring + b"\xff" * 8 + bytes(12),
        b"\x09" + named, b"\x01" + ring + b"\x01\xff", b"\x03" + named, b"\x03" + ring + b"\x09g",
    ):  # fmt: skip
        office.net.submit("b", garbage)
    office.run(0.1)
    assert office.layers["b"].counters["group_stranger"] == 1
    for name in "ab":
        counted = office.layers[name].counters
        assert counted["group_number"] == 1
        assert sum(v for k, v in counted.items() if k.startswith(("group", "list"))) == 10
    assert office.listed("b") == "a"
