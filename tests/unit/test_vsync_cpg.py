"""Process groups over real nodes: the same sequence for all who share a configuration."""

from __future__ import annotations

import pytest

from tests.unit.vsync_net import Net
from vsync.cpg import Cause, GroupChange, GroupEvent, GroupMessage, Groups, Synced
from vsync.types import Guarantee


class Office:
    """A network with a group layer on every node."""

    def __init__(self, names: str) -> None:
        self.net = Net(names)
        self.layers: dict[str, Groups] = {}
        self.events: dict[str, list[GroupEvent]] = {}
        self._at: dict[str, int] = {}
        for name in names:
            self.open(name)
        self.net.settle(names)
        self.run(0.1)

    def open(self, name: str) -> None:
        self.layers[name] = Groups(self.net.nodes[name])
        self.events[name] = []
        self._at[name] = 0

    def run(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.005))):
            self.net.run(0.005)
            for name in self.net.nodes:
                new = self.net.seen[name][self._at[name] :]
                self._at[name] += len(new)
                for output in new:
                    self.events[name] += self.layers[name].on_output(output, self.net.now)
                self.net.flush(name)

    def settle(self, *sides: str) -> None:
        for _ in range(400):
            self.run(0.02)
            if self.net.settled(*sides):
                break
        self.run(0.1)

    def join(self, name: str, group: str = "g", number: int = 1) -> None:
        assert self.layers[name].join(group, number, self.net.now)
        self.net.flush(name)

    def mcast(self, name: str, data: bytes, group: str = "g", number: int = 1) -> None:
        assert self.layers[name].mcast(group, number, data, self.net.now, Guarantee.SAFE)
        self.net.flush(name)

    def data(self, name: str, group: str = "g") -> list[bytes]:
        return [
            e.payload for e in self.events[name] if isinstance(e, GroupMessage) and e.group == group
        ]

    def listed(self, name: str, group: str = "g") -> list[str]:
        return [str(p) for p in self.layers[name].members(group)]

    def changes(self, name: str) -> list[tuple[list[str], list[str]]]:
        return [
            (
                [f"{p} {c.name}" for p, c in e.joined],
                [f"{p} {c.name}" for p, c in e.left],
            )
            for e in self.events[name]
            if isinstance(e, GroupChange)
        ]


def test_joins_leaves_and_data_have_one_place_for_all() -> None:
    office = Office("abc")
    for name in "abc":
        office.join(name)
        office.mcast(name, b"hello from " + name.encode())
    office.run(0.1)
    for name in "abc":
        assert office.listed(name) == ["a:1", "b:1", "c:1"]
    # Who joined last has seen the least, and only what came after its own join.
    assert office.data("a")[-3:] == office.data("b")[-3:] or len(office.data("b")) < 3
    assert office.data("c")[-1:] == office.data("a")[-1:]
    office.layers["b"].leave("g", 1, office.net.now)
    office.net.flush("b")
    office.run(0.1)
    office.mcast("a", b"after")
    office.run(0.1)
    assert office.changes("b")[-1] == ([], ["b:1 LEAVE"])
    assert b"after" not in office.data("b")
    assert office.data("a")[-1] == office.data("c")[-1] == b"after"
    assert office.listed("b") == ["a:1", "c:1"]


def test_groups_and_processes_are_apart() -> None:
    office = Office("ab")
    office.join("a", "g", 1)
    office.join("a", "g", 2)
    office.join("b", "h", 1)
    office.run(0.1)
    office.mcast("a", b"to g")
    office.mcast("b", b"to h", "h")
    office.run(0.1)
    assert office.data("b", "h") == [b"to h"]
    assert office.data("b", "g") == []
    last = office.events["a"][-1]
    assert isinstance(last, GroupMessage)
    assert last.to == (1, 2)
    assert office.layers["a"].groups() == ("g", "h")


def test_a_dead_process_and_a_dead_node_are_told_apart() -> None:
    office = Office("abc")
    for name in "abc":
        office.join(name)
    office.run(0.1)
    office.layers["c"].leave("g", 1, office.net.now, died=True)
    office.net.flush("c")
    office.run(0.1)
    office.net.crash("b")
    office.settle("ac")
    lefts = [left for _, left in office.changes("a") if left]
    assert lefts == [["c:1 PROCDOWN"], ["b:1 NODEDOWN"]]


def test_after_a_merge_all_have_the_same_list() -> None:
    office = Office("abcd")
    for name in "abcd":
        office.join(name)
    office.run(0.1)
    office.net.split("ab", "cd")
    office.settle("ab", "cd")
    assert office.listed("a") == ["a:1", "b:1"]
    assert office.listed("d") == ["c:1", "d:1"]
    office.join("a", "g", 2)
    office.layers["d"].leave("g", 1, office.net.now)
    office.net.flush("d")
    office.run(0.1)
    office.net.split()
    office.settle("abcd")
    for name in "abcd":
        assert office.listed(name) == ["a:1", "a:2", "b:1", "c:1"]
        assert any(isinstance(e, Synced) for e in office.events[name])
    ups = [j for joined, _ in office.changes("a") for j in joined if Cause.NODEUP.name in j]
    assert "c:1 NODEUP" in ups
    office.mcast("c", b"to all")
    office.run(0.1)
    assert {office.data(n)[-1] for n in "abc"} == {b"to all"}


def test_no_ghost_of_a_node_that_came_and_died() -> None:
    """Pitfall 29: a node dies right after it told its list."""
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
        assert office.listed(name) == ["a:1"]


def test_wrong_calls_are_refused_and_garbage_is_counted() -> None:
    office = Office("ab")
    layer = office.layers["a"]
    office.join("a")
    with pytest.raises(ValueError, match="is in g"):
        layer.join("g", 1, office.net.now)
    with pytest.raises(ValueError, match="not in h"):
        layer.mcast("h", 1, b"", office.net.now)
    with pytest.raises(ValueError, match="not in g"):
        layer.leave("g", 2, office.net.now)
    with pytest.raises(ValueError, match="group name"):
        layer.join("g" * 129, 1, office.net.now)
    for garbage in (b"", b"\x01", b"\x05\x00", b"\xff" * 40, b"\x05" + bytes(40)):
        office.net.submit("b", garbage)
    office.run(0.1)
    assert sum(layer.counters.values()) == 5
