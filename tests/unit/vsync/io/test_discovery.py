"""Peer discovery: configured addresses, encoded announcements, and beacons on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from vsync.io import discovery
from vsync.io.discovery import (
    Announcement,
    Beacon,
    Discovery,
    Lacks,
    StaticPeers,
    cluster_tag,
    default_group,
    look_up,
)
from vsync.io.transport import TransportError

TAG = cluster_tag("sales")
GOOD = Announcement(TAG, "a", "127.0.0.1:5400")


def test_static_peers_are_found_at_once_and_only_once() -> None:
    found: list[str] = []
    peers: Discovery = StaticPeers(["10.0.0.1:1", "[::1]:2", "10.0.0.1:1"], found.append)
    peers.start(found.append)
    peers.stop()
    assert found == ["10.0.0.1:1", "[::1]:2"]


def test_names_are_resolved_off_the_loop_until_they_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown name is reported once; a name whose address changes is found again."""
    monkeypatch.setattr(discovery, "LOOK_UP_S", 0.01)
    answers = {"a:1": ["", "", "10.0.0.1:1", "10.0.0.1:1", "10.0.0.9:1"], "b:2": ["10.0.0.2:2"] * 5}
    threads: set[threading.Thread] = set()
    found: list[str] = []
    said: list[str] = []

    def answer(address: str) -> str:
        threads.add(threading.current_thread())
        one = answers[address].pop(0) if answers[address] else "10.0.0.9:1"
        if not one:
            raise TransportError(f"nobody knows {address}")
        return one

    async def run() -> None:
        moved = asyncio.Event()

        def take(address: str) -> None:
            assert threading.current_thread() is threading.main_thread()
            found.append(address)
            if address == "10.0.0.9:1":
                moved.set()

        peers = StaticPeers(["a:1", "b:2", "10.0.0.3:3"], said.append, answer)
        peers.start(take)
        await asyncio.wait_for(moved.wait(), 60)
        peers.stop()

    asyncio.run(run())
    assert found == ["10.0.0.3:3", "10.0.0.2:2", "10.0.0.1:1", "10.0.0.9:1"]
    assert said == [
        "nobody knows a:1; it is looked up again every 0.01 s",
        "ring address a:1 is known now: 10.0.0.1:1",
    ]
    assert threading.main_thread() not in threads


MINE = "10.0.0.1:5"
LISTENS = f"this member listens at {MINE}"


def test_unreachable_peers_are_listed_by_given_name_and_address() -> None:
    numbers = {"db1:5": MINE, "db2:5": "10.0.0.2:5", "db3:5": "10.0.0.3:5"}

    def answer(name: str) -> str:
        if name not in numbers:
            raise TransportError(f"nobody knows {name}")
        return numbers[name]

    async def run() -> str:
        asked = asyncio.Event()  # when the last one is looked up
        peers = StaticPeers([*numbers, "10.0.0.4:5", "db5:5"], lambda _: asked.set(), answer)
        peers.start(lambda _: None)
        await asyncio.wait_for(asked.wait(), 60)
        peers.stop()
        return peers.lack(MINE, "10.0.0.3:5".__eq__)

    unknown = "db5:5 (whose host is not known to this machine)"
    missing = f"db2:5 (10.0.0.2:5), 10.0.0.4:5, {unknown}"
    assert asyncio.run(run()) == f"there is no connection to {missing}; {LISTENS}"


def test_no_complaint_when_all_peers_are_reached() -> None:
    peers = StaticPeers([MINE, "10.0.0.2:5"], print)
    assert peers.lack(MINE, "10.0.0.2:5".__eq__) == ""
    assert peers.lack("10.0.0.2:5,10.1.0.2:5", MINE.__eq__) == ""


def test_a_member_that_lists_only_itself_is_told_so() -> None:
    found = StaticPeers([MINE], print).lack(MINE, MINE.__eq__)
    assert found == f"no address of another member is configured; {LISTENS}"


def test_multicast_that_finds_nobody_or_an_unreachable_peer_is_told() -> None:
    beacon = Beacon("sales", "a", MINE, print, group="239.1.2.3", port=5409, interface="10.0.0.1")
    nobody = "nobody was found by multicast (239.1.2.3:5409 on 10.0.0.1)"
    assert beacon.lack(MINE, MINE.__eq__) == f"{nobody}; {LISTENS}"
    beacon.received(Announcement(TAG, "b", "10.0.0.2:5").encode())
    assert beacon.lack(MINE, MINE.__eq__) == f"there is no connection to 10.0.0.2:5; {LISTENS}"
    assert beacon.lack(MINE, "10.0.0.2:5".__eq__) == ""


def test_missing_peers_are_reported_once_persistent_and_on_change() -> None:
    lacks, news = Lacks(), list[tuple[float, str]]()
    story = [(0.0, "b and c"), (4.0, "b and c"), (6.0, "b and c"), (7.0, "b and c"), (8.0, "c"),
             (9.0, "b and c"), (20.0, "c"), (26.0, "c"), (30.0, ""), (36.0, ""), (40.0, "c"),
             (46.0, "c")]  # fmt: skip
    for now, lack in story:
        if told := lacks.news(now, lack):
            news.append((now, told))
    assert news == [(6.0, "b and c"), (26.0, "c"), (46.0, "c")]
    assert lacks.told == "c"


def test_an_unknown_host_is_named() -> None:
    host = "x" * 64  # too long for a DNS query
    with pytest.raises(TransportError, match=f"the host of ring address {host}:1 is not known"):
        look_up(f"{host}:1")
    assert look_up("127.0.0.1:7") == "127.0.0.1:7"


def test_of_a_hosts_addresses_the_members_own_family_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most resolvers list the IPv6 address first, and a member listening on IPv4 was
    never reached."""
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 5, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 5)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", 5)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert look_up("host:5") == "10.0.0.1:5"
    assert look_up("host:5", "0.0.0.0:5") == "10.0.0.1:5"
    assert look_up("host:5", "[::1]:5") == "[fd00::1]:5"
    del both[1:]
    assert look_up("host:5", "10.0.0.7:5") == "[fd00::1]:5", "better than nothing"


def test_a_static_peer_that_is_not_an_address_is_refused() -> None:
    with pytest.raises(TransportError, match="nonsense"):
        StaticPeers(["nonsense"], print)


def test_an_announcement_round_trips() -> None:
    for said in (GOOD, Announcement(TAG, "grün", "[::1]:9")):
        assert Announcement.decode(said.encode()) == said


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        (b"", "beacon_short"),
        (b"x" * 22, "beacon_short"),
        (b"x" * 60, "beacon_magic"),
        (b"VSYNCBCN\x02" + GOOD.encode()[9:], "beacon_version"),
        (GOOD.encode() + b"x", "beacon_length"),
        (GOOD.encode()[:-5] + b"1" + GOOD.encode()[-4:], "beacon_checksum"),
        (Announcement(TAG, "a", "no address").encode(), "beacon_address"),
        (Announcement(TAG, "a", "0.0.0.0:5400").encode(), "beacon_address"),
        (Announcement(TAG, "a", "host:0").encode(), "beacon_address"),
    ],
)
def test_each_kind_of_garbage_has_a_name(garbage: bytes, code: str) -> None:
    assert Announcement.decode(garbage) == code


def test_every_cut_and_flip_of_an_announcement_is_refused() -> None:
    good = GOOD.encode()
    for size in range(len(good)):
        assert isinstance(Announcement.decode(good[:size]), str)
    for place in range(len(good)):
        flipped = bytes([*good[:place], good[place] ^ 0x40, *good[place + 1 :]])
        assert isinstance(Announcement.decode(flipped), str)


def test_clusters_differ_in_tag_and_group() -> None:
    assert cluster_tag("sales") != cluster_tag("stock")
    assert default_group("sales") != default_group("stock")
    assert default_group("sales").startswith("239.192.")


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: Callable[[], bool]) -> None:
    """Wait under a time limit that turns a hang into a failure; nothing asserts on time."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are the product's own state
            await asyncio.sleep(0.005)


def test_beacons_of_one_cluster_find_each_other_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "EAGER_S", 0.02)
    monkeypatch.setattr(discovery, "STEADY_S", 0.03)
    port, group = free_port(), "239.192.77.77"
    found: dict[str, list[str]] = {name: [] for name in "abx"}
    warnings: list[str] = []

    def beacon(cluster: str, name: str, address: str, eager_for_s: float) -> Beacon:
        made = Beacon(
            cluster, name, address, warnings.append,
            group=group, port=port, eager_for_s=eager_for_s,
        )  # fmt: skip
        made.start(found[name].append)
        return made

    async def main() -> None:
        a = beacon("sales", "a", "127.0.0.1:7001", 10)
        b = beacon("sales", "b", "127.0.0.1:7002", 0)
        x = beacon("stock", "x", "127.0.0.1:7003", 10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
            noise.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            noise.sendto(b"noise", (group, port))
        await until(lambda: bool(found["a"] and found["b"]))
        await until(lambda: a.counters.get("beacon_short", 0) > 0)
        await until(lambda: a.counters.get("beacon_other_cluster", 0) > 1)
        await until(lambda: b.counters["beacons_sent"] > 2)
        for one in (a, b, x):
            one.stop()
            one.stop()
        sent = a.counters["beacons_sent"]
        await asyncio.sleep(0.05)
        assert a.counters["beacons_sent"] == sent

    asyncio.run(main())
    assert found == {"a": ["127.0.0.1:7002"], "b": ["127.0.0.1:7001"], "x": []}
    assert warnings == []


def test_missing_multicast_is_one_clear_warning_and_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "EAGER_S", 0.005)
    warnings: list[str] = []

    async def main() -> None:
        beacon = Beacon("sales", "a", "h:1", warnings.append, interface="192.0.2.1")
        beacon.start(pytest.fail)
        await until(lambda: beacon.counters["beacon_cannot_listen"] > 2)  # keeps trying
        beacon.stop()

    asyncio.run(main())
    assert len(warnings) == 1
    assert "cannot listen by multicast" in warnings[0]
    assert "192.0.2.1" in warnings[0]
    assert "only configured addresses" in warnings[0]


def test_a_lost_network_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EAGER_S", 0.005)
    warnings: list[str] = []

    async def main() -> None:
        beacon = Beacon("sales", "a", "h:1", warnings.append, port=free_port())
        beacon.start(pytest.fail)
        beacon._datagram = bytes(100_000)  # more than a datagram holds: the kernel refuses
        await until(lambda: beacon.counters.get("beacon_cannot_announce", 0) > 2)
        beacon.stop()

    asyncio.run(main())
    assert len(warnings) == 1
    assert "cannot announce" in warnings[0]


def test_a_forger_cannot_fill_the_address_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "ADDRESSES_MAX", 3)
    found: list[str] = []
    beacon = Beacon("sales", "a", "h:1", pytest.fail)
    beacon._found = found.append
    for number in range(2, 9):
        beacon.received(Announcement(TAG, "z", f"h:{number}").encode())
    assert found == ["h:2", "h:3"]
    assert beacon.counters["beacon_too_many"] == 5
