"""Figures members exchange: heard, outdated, malformed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack
import pytest

from broker.frontend.channel import ChannelFacts
from broker.statistics.figures import FIGURES
from broker.statistics.members import (
    CHANNEL_ROWS,
    CHANNELS_ARE,
    CLIENT_ROWS,
    CLIENTS_ARE,
    CLIENTS_BYTES_MAX,
    CLIENTS_EVERY,
    FIGURES_ARE,
    HEARD_S,
    ROWS,
    TELL_S,
    TRAFFIC_IS,
    UNSET,
)
from tests.support.observed import MEMBERS, Observed
from vsync.totem.events import Direct


@dataclass
class FakeLink:
    conn: int
    received: int = 0
    sent: int = 0
    product: str = "pika"
    open: dict[int, ChannelFacts] = field(default_factory=dict)

    def details(self, now: float) -> dict[str, object]:
        return {"connected_s": round(now - 1000), "product": self.product, "ssl": True}

    def channels(self) -> Iterator[tuple[int, ChannelFacts]]:
        yield from self.open.items()


def hear(listener: Observed, speaker: Observed) -> None:
    for to, payload in speaker.sent:
        if to == listener.me:
            assert listener.members.takes(Direct(speaker.me, payload))
    speaker.sent.clear()


def test_figures_reach_the_others_and_expire_unless_repeated() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    theirs.figures["open_fds"] = 7.0
    assert "fd_used" not in ours.statistics.node("b")
    theirs.sweep()
    ours.sweep()
    hear(ours, theirs)
    assert ours.statistics.node("b")["fd_used"] == 7
    ours.sweep(HEARD_S + 1)
    assert "fd_used" not in ours.statistics.node("b")
    assert ours.statistics.node("a")["fd_used"] == 1


def test_a_new_member_and_the_others_learn_of_each_other_at_once() -> None:
    """An operator who looks at a member that just started sees its disk and memory."""
    ours, theirs = Observed("a"), Observed("b")
    ours.fake.primary.members = MEMBERS[:1]
    ours.sweep(TELL_S)
    ours.fake.primary.members = MEMBERS[:2]
    ours.sweep(0.1)
    theirs.sweep(0.1)
    hear(theirs, ours)
    hear(ours, theirs)
    assert ours.statistics.node("b")["fd_used"] == theirs.statistics.node("a")["fd_used"] == 1
    ours.sweep(0.1)
    assert ours.sent == []  # and then at the usual interval


def test_connections_byte_counts_reach_other_members() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client("b")
    connection = ours.rig.machine.connections[client.session, client.conn]
    link = FakeLink(client.conn, 100, 10)
    theirs.links = [link]
    for received, sent in ((100, 10), (400, 40)):
        link.received, link.sent = received, sent
        for _ in range(4):
            theirs.sweep()
            ours.sweep()
            hear(ours, theirs)
    found = ours.statistics.connection(connection)
    assert (found["recv_oct"], found["send_oct"]) == (400, 40)
    rate = found["recv_oct_details"]
    assert isinstance(rate, dict)
    assert 50 <= rate["rate"] <= 150  # 300 bytes in two to six seconds
    ours.sweep(HEARD_S + 1)
    at_rest = ours.statistics.connection(connection)
    assert at_rest["recv_oct_details"] == at_rest["send_oct_details"] == {"rate": 0.0}
    client.close()
    for _ in range(10):
        ours.sweep()
    assert ours.members.traffic(connection.key) is None


def test_a_member_sees_soon_that_nothing_moves_on_a_connection_of_its_own() -> None:
    seen = Observed()
    client = seen.rig.client("a")
    link = FakeLink(client.conn, 100, 10)
    seen.links = [link]

    def rates() -> list[float]:
        found = []
        for _ in range(30):
            seen.sweep(TELL_S / 10)
            one = seen.members.traffic((client.session, client.conn))
            found.append(one.received_rate if one is not None else 0.0)
        return found

    assert set(rates()) == {0.0}
    link.received = 400
    during = rates()
    assert max(during) > 0.0
    assert during[-1] == 0.0


def test_what_is_told_late_about_a_client_is_dropped() -> None:
    seen = Observed()
    client = seen.rig.client("b").channel(2)
    key, gone = (client.session, client.conn), (client.session, client.conn + 1)
    for conn in (key[1], gone[1]):
        for kind, row in (
            (TRAFFIC_IS, (conn, 1, 1)), (CLIENTS_ARE, (conn, {"product": "pika"})),
            (CHANNELS_ARE, (conn, 3, *UNSET._replace(prefetch_count=9))),
        ):  # fmt: skip
            told = msgpack.packb((client.session, [row]))
            assert seen.members.takes(Direct(MEMBERS[1], kind + told))
    assert seen.members.traffic(key) is not None
    assert seen.members.client(key) == {"product": "pika"}
    assert seen.members.channel((*key, 3)) == UNSET  # closed meanwhile
    assert seen.members.traffic(gone) is None
    assert seen.members.client(gone) is None


def test_a_socket_that_has_no_connection_yet_is_not_reported() -> None:
    seen = Observed()
    seen.links = [FakeLink(0, 1, 1)]
    for _ in range(10):
        seen.sweep()
    assert {payload[:2] for _, payload in seen.sent} == {FIGURES_ARE}


def test_many_connections_are_sent_in_small_pieces() -> None:
    seen = Observed()
    seen.links = [FakeLink(number, 1, 1) for number in range(1, 2 * ROWS + 2)]
    for _ in range(20):
        seen.members.step(seen.now)
    told = [payload for to, payload in seen.sent if payload[:2] == TRAFFIC_IS]
    assert len(told) == 3 * (len(MEMBERS) - 1)
    assert all(len(payload) < 4096 for payload in told)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xc1", msgpack.packb(3), msgpack.packb({}), msgpack.packb({"pid": "x"}),
        msgpack.packb([1]), msgpack.packb([1, [[1, 2]]]), msgpack.packb(["x", [["y", 1, 2]]]),
        msgpack.packb([1, 7]), msgpack.packb([float("inf"), []]), b"\x91" * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FIGURES_ARE, TRAFFIC_IS, CLIENTS_ARE, CHANNELS_ARE])
def test_a_malformed_datagram_is_counted_and_dropped(kind: bytes, content: bytes) -> None:
    seen = Observed()
    assert seen.members.takes(Direct(MEMBERS[1], kind + content))
    assert seen.members.counters["malformed"] == 1


def test_figures_of_another_release_are_accepted() -> None:
    """In a rolling upgrade each release has figures that the other lacks."""
    seen = Observed()
    told = {name: 1.0 for name in FIGURES if name != "store_full"} | {"newer_total": 2.0}
    assert seen.members.takes(Direct(MEMBERS[1], FIGURES_ARE + msgpack.packb(told)))
    found = seen.members.of(MEMBERS[1].name)
    assert found is not None
    assert found.keys() == FIGURES.keys()
    assert (found["pid"], found["store_full"]) == (1.0, 0.0)


def test_other_datagrams_are_left_to_their_readers() -> None:
    assert not Observed().members.takes(Direct(MEMBERS[1], b"Oc127.0.0.1:1"))


def test_a_clients_identity_reaches_other_members() -> None:
    """Its encryption too: an operator may look for clients without TLS at any member."""
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client("b")
    key = client.session, client.conn
    theirs.links = [FakeLink(client.conn)]
    for _ in range(3):
        theirs.sweep()
        ours.sweep()
        theirs.sent = [one for one in theirs.sent if not one[1].startswith(TRAFFIC_IS)]  # lost
        hear(ours, theirs)
    told = ours.members.client(key)
    assert told is not None
    assert (told["product"], told["ssl"]) == ("pika", True)
    since = told["connected_s"]
    ours.sweep(5.0)
    assert ours.members.client(key) == {**told, "connected_s": since + 5}  # type: ignore[operator]
    theirs.sent.clear()
    theirs.sweep(TELL_S)
    assert not [one for _, one in theirs.sent if one.startswith(CLIENTS_ARE)]  # once is enough
    client.close()
    for _ in range(4):
        ours.sweep(TELL_S)
    assert ours.members.client(key) is None


def test_clients_own_texts_fit_into_a_datagram_however_long() -> None:
    """Clients choose these texts; twenty of them must not block what a member reports."""
    seen = Observed()
    longest = "\N{PILE OF POO}" * 256
    seen.links = [FakeLink(number, 1, 1, longest) for number in range(1, 8 * CLIENT_ROWS)]
    seen.links.insert(3, FakeLink(9999, 1, 1, "x" * CLIENTS_BYTES_MAX))
    for _ in range(40):
        seen.members.step(seen.now)
    told = [payload for to, payload in seen.sent if payload[:2] == CLIENTS_ARE and to.name == "b"]
    assert all(len(payload) <= CLIENTS_BYTES_MAX for payload in told)
    rows = [row for payload in told for row in msgpack.unpackb(payload[2:])[1]]
    assert [conn for conn, _ in rows] == list(range(1, 8 * CLIENT_ROWS))  # except that one
    assert [payload for _, payload in seen.sent if payload[:2] == TRAFFIC_IS]


def test_client_identities_are_repeated_for_members_that_missed_them() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    clients = [ours.rig.client("b") for _ in range(CLIENT_ROWS + 1)]
    theirs.links = [FakeLink(one.conn) for one in clients]
    for _ in range(3):
        theirs.sweep(TELL_S)
    theirs.sent.clear()  # lost
    for _ in range(2 * CLIENTS_EVERY + 3):
        theirs.sweep(TELL_S)
        ours.now = theirs.now
        ours.sweep(0.0)
        hear(ours, theirs)
    for one in clients:
        assert ours.members.client((one.session, one.conn)) is not None


def test_a_channels_settings_reach_other_members() -> None:
    """They are sent as they change, never for channels in their initial state, and dropped with
    the channel."""
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client("b").channel(2).channel(3)
    link = FakeLink(client.conn)
    theirs.links = [link]
    keys = [(client.session, client.conn, number) for number in (2, 3)]

    def pass_on() -> list[bytes]:
        for _ in range(3):
            theirs.sweep()
            ours.sweep()
        told = [one for to, one in theirs.sent if to == ours.me and one[:2] == CHANNELS_ARE]
        hear(ours, theirs)
        return told

    assert [ours.members.channel(key) for key in keys] == [None, None]
    confirming = UNSET._replace(confirm=1, messages_unconfirmed=70_000)
    link.open = {2: confirming, 3: UNSET}
    [told] = pass_on()
    assert [row[1] for row in msgpack.unpackb(told[2:])[1]] == [2]
    assert [ours.members.channel(key) for key in keys] == [confirming, UNSET]
    assert pass_on() == []
    link.open = {2: UNSET, 3: UNSET._replace(prefetch_count=9)}
    assert len(pass_on()) == 1
    assert [ours.members.channel(key) for key in keys] == [UNSET, link.open[3]]
    for _ in range(2):  # repeated at times, for members that missed it
        theirs.sent.clear()
        for _ in range(3 * CLIENTS_EVERY):
            theirs.sweep(TELL_S)
        assert [one for to, one in theirs.sent if to == ours.me and one[:2] == CHANNELS_ARE]
    client.close()
    for _ in range(4):
        ours.sweep(TELL_S)
    assert ours.members.channel(keys[1]) is None


@pytest.mark.parametrize("rounds", range(1, CLIENTS_EVERY + 1))
def test_a_member_that_comes_never_takes_a_set_channel_for_unset(rounds: int) -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client("b").channel(2)
    facts = UNSET._replace(prefetch_count=9)
    theirs.links = [FakeLink(client.conn, open={2: facts})]

    def one_round() -> None:
        for _ in range(4):
            theirs.sweep(TELL_S / 4)

    for _ in range(rounds):
        one_round()
    theirs.sent.clear()  # before it came
    for _ in range(CLIENTS_EVERY + 1):
        one_round()
        hear(ours, theirs)
        assert ours.members.channel((client.session, client.conn, 2)) in (None, facts)
    assert ours.members.channel((client.session, client.conn, 2)) == facts


def test_many_channels_are_sent_in_small_pieces() -> None:
    seen = Observed()
    seen.links = [
        FakeLink(conn, open={number: UNSET._replace(prefetch_count=1) for number in range(1, 2048)})
        for conn in (1, 2, 3)
    ]
    pieces = []
    for _ in range(20):
        seen.members.step(seen.now)
        pieces.append([one for to, one in seen.sent if to.name == "b" and one[:2] == CHANNELS_ARE])
        seen.sent.clear()
    assert max(map(len, pieces)) == -(-2047 // CHANNEL_ROWS)  # one connection a step
    told = [piece for some in pieces for piece in some]
    assert sum(len(msgpack.unpackb(piece[2:])[1]) for piece in told) == 3 * 2047
    assert max(map(len, told)) <= CLIENTS_BYTES_MAX
