"""G31: a queue with at-least-once dead-lettering keeps dead letters that it cannot send on."""

import pytest

from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.image.invariants import check
from broker.machine.image.scrub import Scrub
from broker.machine.limits import LETTERS_RETRY_US
from broker.machine.machine import Machine
from broker.machine.move_log import BY_DEAD_LETTER, BY_LETTER, FLAG, MOVE, SENT_ON
from broker.machine.requests.properties import headers_of
from broker.machine.state import BODY, Queue, ready_count
from tests.support.three_machines import Client, Rig

WORK_MAX = "broker.machine.publishing.letters.LETTERS_WORK_MAX"
STRATEGY: c.Table = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "dead",
}


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q", STRATEGY)
    client.consume("q")
    return client


def die(client: Client, *bodies: bytes, flags: int = c.PERSISTENT) -> None:
    """Publishes messages and rejects them."""
    for body in bodies:
        client.publish("q", body, flags=flags)
        tag = client.rig.machine.channels[client.session, client.conn, client.chan].next_tag - 1
        assert client.nack(tag, requeue=False) == c.OK
    check(client.rig.machine)


def queue_of(client: Client, name: str) -> Queue:
    return client.rig.machine.vhosts["/"].queues[name]


def kept(client: Client, name: str = "q") -> int:
    letters = queue_of(client, name).letters
    return 0 if letters is None else ready_count(letters)


def bodies(client: Client, name: str) -> list[bytes]:
    queue = queue_of(client, name)
    return [message[BODY] for message in (*queue.returned.values(), *queue.ready)]


def give_it_a_way(client: Client, name: str = "grave", arguments: c.Table | None = None) -> None:
    client.exchange("dead", "fanout")
    client.queue(name, arguments)
    client.bind(name, "dead")


def wait(client: Client) -> None:
    client.rig.pass_time(LETTERS_RETRY_US + 300_000)
    check(client.rig.machine)


def test_a_letter_for_two_queues_needs_credit_for_both(client: Client) -> None:
    """G31: the consumers of both queues had credit, but it was one credit of their channel."""
    give_it_a_way(client)
    give_it_a_way(client, "full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    other = client.rig.client("b")
    other.qos(1)
    for queue in ("grave", "full"):
        other.consume(queue, queue)
    die(client, b"1")
    assert (kept(client), queue_of(client, "grave").unacked) == (1, 0)
    other.qos(2)
    wait(client)
    assert kept(client) == 0
    assert [queue_of(client, queue).unacked for queue in ("grave", "full")] == [1, 1]


def test_letters_wait_until_their_exchange_and_a_queue_exist(client: Client) -> None:
    die(client, b"1", b"2")
    assert kept(client) == 2
    wait(client)
    client.exchange("dead", "fanout")
    wait(client)
    assert kept(client) == 2, "the exchange reaches no queue"
    give_it_a_way(client)
    assert client.rig.machine.wants_tick
    wait(client)
    assert (kept(client), bodies(client, "grave")) == (0, [b"1", b"2"])
    assert not client.rig.machine.wants_tick, "no letter waits any more"
    client.get("grave")
    got = client.got()
    assert isinstance(got, GetOk)
    headers = headers_of(got.properties)
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("q", "rejected")
    assert (got.exchange, got.key) == ("dead", "q")


def test_a_letter_with_a_route_goes_at_once(client: Client) -> None:
    give_it_a_way(client)
    die(client, b"1")
    assert (bodies(client, "grave"), queue_of(client, "q").letters) == ([b"1"], None)


def test_no_queue_gets_a_copy_while_another_is_full(client: Client) -> None:
    give_it_a_way(client, "full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    give_it_a_way(client, "other")
    die(client, b"1", b"2", b"3")
    assert [bodies(client, name) for name in ("full", "other")] == [[b"1"], [b"1"]]
    assert kept(client) == 2
    client.purge("full")
    die(client, b"4")
    assert kept(client) == 3, "it waits behind the earlier letters"
    wait(client)
    assert [bodies(client, name) for name in ("full", "other")] == [[b"2"], [b"1", b"2"]]
    client.consume("full", "reader", no_ack=True)
    wait(client)
    assert bodies(client, "other") == [b"1", b"2", b"3", b"4"]
    assert kept(client) == 0


def test_kept_letters_count_towards_the_queue(client: Client) -> None:
    client.queue("small", {**STRATEGY, "x-max-length": 2})
    client.publish("small", b"1")
    client.get("small")
    got = client.got()
    assert isinstance(got, GetOk)
    client.nack(got.delivery_tag, requeue=False)
    assert kept(client, "small") == 1
    for number, accepted in ((1, True), (2, False)):
        client.publish("small", b"more", no=number)
        assert [one.ack for one in client.confirms()] == [accepted]


def test_the_bytes_of_what_is_kept_count_too(client: Client) -> None:
    client.queue("r", {**STRATEGY, "x-max-length-bytes": 9})
    client.publish("r", b"12345")
    client.get("r")
    client.nack(1, requeue=False)
    assert kept(client, "r") == 1
    for body, fits in ((b"12345", False), (b"1234", True)):
        client.publish("r", body, no=1)
        assert [one.ack for one in client.confirms()] == [fits]


def test_a_letter_may_return_to_its_own_full_queue(client: Client) -> None:
    """A rejected message may be dead-lettered to the queue where it died: the letter leaves as it
    enters."""
    client.queue("loop", {**STRATEGY, "x-max-length": 1, "x-dead-letter-exchange": "later"})
    client.publish("loop", b"1")
    client.get("loop")
    got = client.got()
    assert isinstance(got, GetOk)
    client.nack(got.delivery_tag, requeue=False)
    client.exchange("later", "fanout")
    client.bind("loop", "later")
    wait(client)
    assert (bodies(client, "loop"), kept(client, "loop")) == ([b"1"], 0)


def test_letters_are_in_snapshots_and_audited(client: Client) -> None:
    die(client, b"1", b"2")
    machine = client.rig.machine
    copy = Machine.restore("b", machine.snapshot())
    check(copy)
    assert list(copy.snapshot()) == list(machine.snapshot())
    assert copy.wants_tick
    assert copy.due_in_us == machine.due_in_us
    scrub = Scrub(copy)
    while not scrub.done:
        assert scrub.step(100) is None
    assert scrub.messages == 2
    client.rig.machines["b"] = copy
    give_it_a_way(client)
    wait(client)
    assert bodies(client, "grave") == [b"1", b"2"], "and all machines agree"


def test_a_cold_start_keeps_persistent_letters(client: Client) -> None:
    die(client, b"gone", flags=0)
    die(client, b"stays")
    client.queue("passing", STRATEGY, durable=False)
    client.publish("passing", b"m")
    client.get("passing")
    client.nack(0, multiple=True, requeue=False)
    rig = client.rig
    rig.activate(*"abc", cold=True)
    check(rig.machine)
    client = rig.client()
    assert kept(client) == 1
    give_it_a_way(client)
    wait(client)
    assert bodies(client, "grave") == [b"stays"]


def test_a_purge_or_deletion_drops_the_letters(client: Client) -> None:
    die(client, b"1")
    client.purge("q")
    assert kept(client) == 0
    die(client, b"2")
    client.delete("q")
    check(client.rig.machine)
    assert not client.rig.machine.wants_tick
    client.queue("q", STRATEGY)
    assert queue_of(client, "q").letters is None


@pytest.mark.parametrize(
    "changed",
    [
        {"x-dead-letter-strategy": "at-least-once", "x-dead-letter-exchange": "dead"},
        STRATEGY | {"x-overflow": "reject-publish-dlx"},
        STRATEGY | {"x-dead-letter-strategy": "at-most-once"},
    ],
)
def test_without_its_preconditions_the_strategy_is_at_most_once(
    client: Client, changed: c.Table
) -> None:
    """As in RabbitMQ: a queue that drops its oldest messages would keep letters without a bound."""
    assert client.queue("other", changed) == c.OK
    client.publish("other", b"1")
    client.get("other")
    got = client.got()
    assert isinstance(got, GetOk)
    client.nack(got.delivery_tag, requeue=False)
    assert kept(client, "other") == 0
    assert client.queue("bad", {"x-dead-letter-strategy": "twice"}) == 406
    assert "invalid_dlx_strategy; one of at-most-once, at-least-once" in client.error()


def test_a_policy_sets_and_withdraws_the_strategy(client: Client) -> None:
    rig = client.rig
    body: c.Table = {
        "pattern": "^plain$",
        "definition": {
            "dead-letter-strategy": "at-least-once", "overflow": "reject-publish",
            "dead-letter-exchange": "",  "dead-letter-routing-key": "nowhere",
        },
    }  # fmt: skip
    client.queue("plain")
    assert rig.define("policy", "/", "keep", body)[0] == 201
    for _ in range(3):
        client.publish("plain", b"m")
        client.get("plain")
        got = client.got()
        assert isinstance(got, GetOk)
        client.nack(got.delivery_tag, requeue=False)
    assert kept(client, "plain") == 3
    rig.define("policy", "/", "keep", None)
    wait(client)
    assert kept(client, "plain") == 0, "at most once: letters without a route are dropped"


def test_many_letters_are_sent_in_slices(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WORK_MAX, 60)
    die(client, *(bytes([number]) for number in range(9)))
    give_it_a_way(client)
    rig = client.rig
    while rig.machine.due_in_us > 0:
        rig.pass_time(50_000)
    assert 0 < kept(client) < 9
    check(rig.machine)
    wait(client)
    assert bodies(client, "grave") == [bytes([number]) for number in range(9)]


def test_the_log_names_the_letter_that_is_sent_on(client: Client) -> None:
    die(client, b"1")
    assert BY_DEAD_LETTER in [row[0] & ~FLAG for row in MOVE.iter_unpack(client.rig.moves)]
    give_it_a_way(client)
    moved: list[tuple[int, ...]] = []
    while client.rig.machine.wants_tick:
        for name in "abc":
            client.rig.tick(name, client.rig.machine.now_us + 300_000)
            moved += MOVE.iter_unpack(client.rig.moves)
    assert [row[0] & ~FLAG for row in moved[:2]] == [SENT_ON, BY_LETTER]
    assert moved[0][4] == moved[1][2], "both moves name the number of the letter"
