"""G29: browsers are sent the waiting messages of a queue in order, and take none."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.limits import NO_ACK_HELD_MAX, READS_PER_TURN
from broker.machine.move_log import FLAG, MOVE, READ_SENT, Op
from broker.machine.queueing import streams
from broker.waiting import backlog
from tests.properties.models.memory_shelf import MemoryShelf, pager
from tests.support.three_machines import Client, Rig

BROWSE: c.Table = {"x-filter-no-consume": True}
LAST: c.Table = {"qpid.last_value_queue_key": "k"}


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    assert client.queue("q") == c.OK
    return client


def browse(client: Client, prefetch: int = 100, queue: str = "q", tag: str = "b") -> list[str]:
    assert client.consume(queue, tag, prefetch, BROWSE) == c.OK
    return seen(client)


def seen(client: Client) -> list[str]:
    """What the latest command sent to this channel; no browsed message is flagged as
    redelivered."""
    assert not any(redelivered for *_, redelivered in client.deliveries())
    return [body.decode() for _, body, _ in client.deliveries()]


def fill(client: Client, *texts: str, queue: str = "q") -> None:
    for text in texts:
        client.publish(queue, text.encode())


def keyed(client: Client, *texts: str) -> None:
    for text in texts:
        properties = codec.encode_properties({"headers": {"k": text[0]}})
        client.publish("q", text.encode(), properties=properties)


def take(client: Client, queue: str = "q") -> int:
    client.get(queue)
    tag = client.got().delivery_tag  # type: ignore[union-attr]
    assert isinstance(tag, int)
    return tag


def test_a_browser_gets_waiting_messages_then_new_ones(rig: Rig, client: Client) -> None:
    fill(client, "1", "2")
    looker = client.channel(2)
    assert browse(looker) == ["1", "2"]
    fill(client, "3")
    assert seen(looker) == ["3"]
    assert rig.depth("q") == 3
    assert rig.queue().unacked == 0, "a browsed message still waits"
    assert browse(client.channel(3)) == ["1", "2", "3"], "another browser starts from the head"


def test_a_browser_does_not_change_what_consumers_get(rig: Rig, client: Client) -> None:
    looker = client.channel(2)
    assert browse(looker) == []
    assert client.consume("q", prefetch=1) == c.OK
    fill(client, "1")
    assert [body for _, body, _ in client.deliveries()] == [b"1"]
    assert seen(looker) == [], "the message was consumed without waiting"
    fill(client, "2")
    assert seen(looker) == ["2"]
    client.ack(1)
    assert client.deliveries() == [(2, b"2", False)], (
        "not flagged as redelivered: no consumer held it before"
    )


def test_a_message_consumed_before_its_turn_is_missed(rig: Rig, client: Client) -> None:
    fill(client, "1", "2", "3")
    looker = client.channel(2)
    assert browse(looker, 1) == ["1"]
    for _ in range(2):
        client.ack(take(client))
    looker.ack(1)
    assert seen(looker) == ["3"]


def test_a_message_returned_ahead_of_the_browser_is_seen_and_one_behind_is_not(
    rig: Rig, client: Client
) -> None:
    fill(client, "1", "2", "3")
    one, two, three = (take(client) for _ in range(3))
    looker = client.channel(2)
    assert browse(looker) == []
    client.nack(two)
    assert seen(looker) == ["2"]
    rig.restore()
    client.nack(one)
    assert seen(looker) == []
    client.nack(three)
    assert seen(looker) == ["3"]
    client.ack(take(client))
    client.nack(take(client))
    assert seen(looker) == [], "each message once"


def test_settling_gives_credit_and_nothing_else(rig: Rig, client: Client) -> None:
    client.queue("grave")
    letters: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue("buried", {**letters, "x-delivery-limit": 0})
    fill(client, *"12345678", queue="buried")
    looker = client.channel(2)
    assert browse(looker, 1, "buried") == ["1"]
    looker.ack(1)
    assert seen(looker) == ["2"]
    looker.nack(2)
    assert seen(looker) == ["3"]
    looker.nack(3, requeue=False)
    assert seen(looker) == ["4"]
    looker.recover()
    assert seen(looker) == ["5"]
    looker.commit([], [c.TxSettle(5, False, c.TX_ACK)])
    assert seen(looker) == ["6"]
    assert (rig.depth("buried"), rig.depth("grave")) == (8, 0)
    looker.close_channel()
    assert (rig.depth("buried"), rig.depth("grave")) == (8, 0)


def test_a_browser_does_not_change_counts_of_returns(rig: Rig, client: Client) -> None:
    client.queue("counted", {"x-delivery-limit": 3})
    fill(client, "1", queue="counted")
    client.nack(take(client, "counted"))
    looker = client.channel(2)
    assert browse(looker, 1, "counted") == ["1"]
    looker.ack(1)
    assert list(rig.machine.vhosts["/"].queues["counted"].returns.values()) == [1]


def test_without_acks_it_continues_as_its_member_reports_sent(rig: Rig, client: Client) -> None:
    fill(client, "1", "2")
    looker = client.channel(2)
    assert looker.consume("q", "b", 0, BROWSE, no_ack=True) == c.OK
    assert seen(looker) == ["1", "2"]
    rig.restore()
    looker.sent(2)
    assert READ_SENT in [what & ~FLAG for what, *_ in MOVE.iter_unpack(rig.moves)]
    assert rig.depth("q") == 2
    fill(client, "3")
    assert seen(looker) == ["3"]
    assert len(rig.machine.channels[looker.session, looker.conn, looker.chan].unsent) == 1
    assert NO_ACK_HELD_MAX > 3


def test_a_browsed_last_value_queue_is_a_table_and_its_updates(rig: Rig) -> None:
    """As Qpid's manual says: a dump of the current values, then each update."""
    client = rig.client()
    client.queue("q", LAST)
    keyed(client, "a1", "b1", "a2")
    looker = client.channel(2)
    assert browse(looker, 2) == ["b1", "a2"]
    looker.ack(2, multiple=True)
    keyed(client, "b2")
    assert seen(looker) == ["b2"]
    rig.restore()
    tag = take(client)
    client.nack(tag)
    assert seen(looker) == [], "the returned message was seen before"
    keyed(client, "c1")
    assert seen(looker) == ["c1"]


def test_a_browser_neither_supersedes_nor_releases_last_values(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", LAST)
    keyed(client, "a1")
    looker = client.channel(2)
    assert browse(looker) == ["a1"]
    held = take(client)
    keyed(client, "a2")
    looker.ack(1)
    client.nack(held)
    assert rig.depth("q") == 1
    assert [message[-1] for message in rig.queue().returned.values()] == [b"a2"]


def test_a_long_queue_is_sent_in_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "READS_MAX", 40)
    monkeypatch.setattr(backlog, "BLOCK_MESSAGES", 4)
    client = rig.client()
    client.queue("q")
    count = 3 * READS_PER_TURN
    fill(client, *map(str, range(count)))
    for _ in range(5):
        client.ack(take(client))
    looker = client.channel(2)
    found = browse(looker, 1000)
    assert len(found) == 2 * READS_PER_TURN
    assert rig.machine.wants_tick
    rig.restore()
    for _ in range(10):
        rig.tick("a", 0)
        found += seen(looker)
    assert found == list(map(str, range(5, count)))
    assert not rig.machine.reading


def test_later_messages_are_found_by_number(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even in blocks that were full before the browser started, and in a queue emptied
    meanwhile."""
    monkeypatch.setattr(backlog, "BLOCK_MESSAGES", 4)
    client = rig.client()
    client.queue("q")
    fill(client, *map(str, range(10)))
    looker, other = client.channel(2), client.channel(3)
    assert browse(looker, 3) == ["0", "1", "2"]
    fill(client, *map(str, range(10, 30)))
    for _ in range(9):
        client.ack(take(client))
    assert browse(other, 100) == list(map(str, range(9, 30)))
    client.purge("q")
    looker.ack(0, multiple=True)
    assert seen(looker) == []
    fill(client, "30")
    assert seen(looker) == ["30"]


def test_a_browsed_backlog_stays_on_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read page by page, and little of what was read is kept; other members read nothing."""
    monkeypatch.setattr(backlog, "BLOCK_MESSAGES", 8)
    shelf = MemoryShelf()
    pagers = {name: pager(shelf=shelf) for name in "ab"}
    for name, its in pagers.items():
        rig.machines[name].pager = its
    client = rig.client("a")
    client.queue("q")
    body = bytes(1000)
    for _ in range(100):
        client.publish("q", body)
    queue, recent = rig.queue(), rig.machines["a"].recent
    recent._bytes_max = 20_000
    on_disk = sum(block.on_disk for block in queue.ready.blocks)
    assert on_disk > 9
    looker = client.channel(2)
    assert len(browse(looker, 7)) == 7
    tag = 0
    for _ in range(14):
        tag += 7
        looker.ack(tag, multiple=True)
        assert recent.bytes <= 20_000
    assert rig.machine.channels[looker.session, looker.conn, looker.chan].next_tag == 101
    assert sum(block.on_disk for block in queue.ready.blocks) == on_disk
    read = {name: its.counters["at_once"] for name, its in pagers.items()}
    assert read == {"a": on_disk, "b": 0}, "each page once, on the member of the client"


def test_a_single_active_consumer_is_no_browser(rig: Rig, client: Client) -> None:
    client.queue("one", {"x-single-active-consumer": True})
    fill(client, "1", "2", queue="one")
    looker = client.channel(2)
    assert browse(looker, 10, "one") == ["1", "2"]
    client.consume("one", "first", 1)
    assert client.deliveries() == [(1, b"1", False)]
    client.consume("one", "second", 1)
    assert client.deliveries() == []
    looker.cancel("b")
    client.cancel("first")
    assert client.deliveries() == [(2, b"2", False)]


def test_a_browser_counts_as_a_consumer(rig: Rig, client: Client) -> None:
    client.queue("auto", auto_delete=True)
    client.queue("lent", {"x-expires": 1000})
    looker = client.channel(2)
    for queue in ("auto", "lent"):
        assert browse(looker, 1, queue, queue) == []
    rig.pass_time(5_000_000)
    assert rig.has_queue("lent")
    looker.cancel("lent")
    rig.pass_time(5_000_000)
    assert not rig.has_queue("lent")
    looker.cancel("auto")
    assert not rig.has_queue("auto")
    assert client.consume("q", "x", 1, exclusive=True) == c.OK
    assert looker.consume("q", "b", 1, BROWSE) == 403


def test_a_lost_browser_leaves_the_queue_unchanged(rig: Rig, client: Client) -> None:
    fill(client, "1")
    other = rig.client("b")
    assert browse(other) == ["1"]
    assert rig.queue().readers is not None
    rig.activate("b")
    assert rig.queue().readers is None
    assert rig.depth("q") == 1
    assert client.consume("q", prefetch=1) == c.OK
    assert client.deliveries() == [(1, b"1", False)]


def test_messages_it_held_are_settled_along_with_consumed_ones(rig: Rig, client: Client) -> None:
    """On one channel, after both were cancelled: only the consumer's messages count as
    unacknowledged in the queue."""
    fill(client, "1", "2", "3")
    browse(client, 2)
    assert client.consume("q", "t", 2) == c.OK
    client.cancel("b")
    client.cancel("t")
    assert rig.queue().readers is None
    rig.restore()
    client.ack(3)
    client.ack(4, multiple=True)
    queue = rig.queue()
    assert (rig.depth("q"), queue.unacked, queue.unacked_bytes) == (1, 0, 0)
    assert rig.machine.channels[client.session, client.conn, client.chan].outstanding == 0


def test_no_consumer_takes_from_a_browse_only_queue(rig: Rig) -> None:
    client = rig.client()
    assert client.queue("q", {**LAST, "qpid.browse-only": True}) == c.OK
    keyed(client, "a1", "b1", "a2")
    assert client.consume("q", "t", 10) == c.OK
    assert seen(client) == ["b1", "a2"]
    rig.restore()
    client.ack(0, multiple=True)
    assert rig.depth("q") == 2
    looker = client.channel(2)
    looker.get("q")
    assert "basic.get takes, and this queue is browsed only" in looker.error()
    again = rig.client()
    assert again.queue("r", {"qpid.browse-only": True, "x-queue-type": "stream"}) == 406


def test_deleting_the_queue_cancels_the_browser(rig: Rig, client: Client) -> None:
    fill(client, "1")
    looker = rig.client()
    assert browse(looker) == ["1"]
    client.delete("q")
    assert looker.cancelled() == ["b"]
    rig.restore()
    assert looker.ack(1) == c.OK


def test_a_cold_start_finds_the_queue_whole(rig: Rig, client: Client) -> None:
    fill(client, "1", "2")
    take(client)
    assert browse(client.channel(2)) == ["2"]
    rig.activate(*"abc", cold=True)
    assert rig.depth("q") == 2


def test_credit_of_a_channel_is_shared(rig: Rig, client: Client) -> None:
    client.queue("other")
    fill(client, "1", "2", "3")
    fill(client, "4", queue="other")
    looker = client.channel(2)
    looker.qos(2)
    assert browse(looker, 0) == ["1", "2"]
    assert looker.consume("other", "t", 0) == c.OK
    assert seen(looker) == []
    looker.ack(1)
    assert len(seen(looker)) == 1
    looker.ack(2)
    rest = len(seen(looker))
    assert rest == 1


@pytest.mark.parametrize(
    ("arguments", "queue", "code", "words"),
    [
        ({"x-filter-no-consume": "yes"}, "q", 406, "a boolean is needed"),
        ({"x-filter-jms-selector": "a = 1"}, "q", 540, "choose at the client"),
        ({**BROWSE, "x-filter-auto-close": True}, "q", 540, "cancel when nothing comes"),
        (BROWSE, "ranked", 540, "a queue with priorities cannot be browsed"),
    ],
)
def test_unsupported_options_are_refused(
    client: Client, arguments: c.Table, queue: str, code: int, words: str
) -> None:
    client.queue("ranked", {"x-max-priority": 3})
    assert client.consume(queue, "b", 1, arguments) == code
    assert words in client.error()


def test_disabled_options_make_an_ordinary_consumer(rig: Rig, client: Client) -> None:
    off: c.Table = {
        "x-filter-no-consume": False, "x-filter-auto-close": False, "x-filter-jms-selector": "",
    }  # fmt: skip
    fill(client, "1")
    assert client.consume("q", "t", 1, off) == c.OK
    assert rig.depth("q") == 0


def test_browsing_a_stream_changes_nothing(rig: Rig, client: Client) -> None:
    client.queue("log", {"x-queue-type": "stream"})
    fill(client, "1", queue="log")
    assert client.consume("log", "t", 1, {**BROWSE, "x-stream-offset": "first"}) == c.OK
    assert seen(client) == ["1"]


def test_the_moves_name_the_browser(rig: Rig, client: Client) -> None:
    fill(client, "1", "2")
    browse(client.channel(2))
    ops = [what & 15 for what, *_ in MOVE.iter_unpack(rig.moves)]
    assert ops == [Op.READER, Op.READ, Op.READ]


@pytest.mark.parametrize(
    "arguments", [{}, {"qpid.last_value_queue": 1}, {"qpid.group_header_key": "g"}]
)
def test_what_comes_back_is_not_read_again(rig: Rig, arguments: c.Table) -> None:
    client, other = rig.client(), rig.client("b")
    client.queue("read once", arguments)
    client.publish("read once", b"m")
    client.consume("read once", arguments=BROWSE)
    assert len(client.deliveries()) == 1
    other.get("read once")
    other.nack(1)
    assert client.deliveries() == []
