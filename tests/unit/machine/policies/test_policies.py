"""Policies: which one applies, what it changes at once, and what continues at later positions."""

import pytest

from broker.machine import commands as c
from broker.machine.commands import Table, Value
from broker.machine.machine import Machine
from broker.machine.policies.choice import effective_definition, policies_of_exchange
from broker.machine.state import Queue
from tests.support.three_machines import STEP_US, Client, Rig

LATER_US = STEP_US + 1


@pytest.fixture
def client() -> Client:
    return Rig().client()


def set_policy(
    client: Client, name: str, pattern: str = "", *, operator: bool = False, priority: int = 0,
    apply_to: str = "all", **settings: Value,
) -> tuple[int, str]:  # fmt: skip
    body: Table = {
        "pattern": pattern,
        "definition": {key.replace("_", "-"): value for key, value in settings.items()},
        "priority": priority,
        "apply-to": apply_to,
    }
    what = "operator_policy" if operator else "policy"
    return client.rig.define(what, "/", name, body)


def clear_policy(client: Client, name: str) -> tuple[int, str]:
    return client.rig.define("policy", "/", name, None)


def queue(client: Client, name: str = "q") -> Queue:
    return client.rig.machine.vhosts["/"].queues[name]


def names(client: Client, name: str = "q") -> tuple[str | None, str | None]:
    found = queue(client, name)
    return (
        found.policy.name if found.policy else None,
        found.operator_policy.name if found.operator_policy else None,
    )


def fill(client: Client, count: int, name: str = "q") -> None:
    for number in range(count):
        client.publish(name, b"%d" % number)


def restored(client: Client) -> None:
    """Replaces a member by one restored from a snapshot; the rig compares it from then on."""
    rig = client.rig
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    rig.machines["b"].invariants()
    assert list(rig.machines["b"].snapshot()) == list(rig.machine.snapshot())


def test_the_highest_priority_applies_then_the_first_name(client: Client) -> None:
    client.queue("q")
    client.queue("other")
    assert set_policy(client, "b", "q", max_length=2) == (201, "")
    assert set_policy(client, "a", "q", max_length=3) == (201, "")
    assert names(client) == ("a", None)
    set_policy(client, "high", "q", priority=1, max_length=4)
    set_policy(client, "higher", "^x", priority=2, max_length=5)
    assert names(client) == ("high", None)
    assert names(client, "other") == (None, None)
    assert set_policy(client, "high", "q", priority=-1, max_length=4) == (204, "")
    assert names(client) == ("a", None)
    assert clear_policy(client, "a") == (204, "")
    assert clear_policy(client, "a")[0] == 404
    assert names(client) == ("b", None)
    restored(client)


def test_a_policy_applies_to_queues_declared_later(client: Client) -> None:
    set_policy(client, "p", "^q", max_length=1)
    client.queue("q")
    fill(client, 3)
    assert client.rig.depth("q") == 1
    assert client.queue("q") == c.OK, "a policy does not change its arguments"


@pytest.mark.parametrize(
    ("apply_to", "applies"),
    [("all", "cq"), ("queues", "cq"), ("exchanges", ""), ("classic_queues", "c"),
     ("quorum_queues", "q"), ("streams", "")],
)  # fmt: skip
def test_apply_to(client: Client, apply_to: str, applies: str) -> None:
    client.queue("c")
    client.queue("q", {"x-queue-type": "quorum"})
    set_policy(client, "p", apply_to=apply_to, max_length=1)
    assert "".join(name for name in "cq" if names(client, name)[0]) == applies
    exchange = client.rig.machine.vhosts["/"].exchanges["amq.direct"]
    found = policies_of_exchange(client.rig.machine.vhosts["/"], exchange)[0]
    assert (found is not None) == (apply_to in ("all", "exchanges"))


def test_the_lower_number_wins_and_a_queues_own_word_wins(
    client: Client,
) -> None:
    own: Table = {"x-max-length": 5, "x-overflow": "reject-publish", "x-delivery-limit": 9}
    client.queue("q", own)
    set_policy(client, "p", max_length=7, message_ttl=8, overflow="drop-head", delivery_limit=8)
    set_policy(client, "o", operator=True, message_ttl=6, expires=9, delivery_limit=3)
    found = queue(client)
    assert names(client) == ("p", "o")
    assert (found.max_length, found.ttl_us, found.expires_us) == (5, 6_000, 9_000)
    assert (found.overflow, found.delivery_limit) == ("reject-publish", 3)
    assert effective_definition(found.policy, found.operator_policy) == {
        "max-length": 7,
        "message-ttl": 6,
        "overflow": "drop-head",
        "delivery-limit": 3,
        "expires": 9,
    }
    restored(client)
    client.rig.define("operator_policy", "/", "o", None)
    assert (found.ttl_us, found.expires_us, found.delivery_limit) == (8_000, -1, 8)


def test_the_larger_number_of_mirrors_wins(client: Client) -> None:
    client.queue("q")
    set_policy(client, "p", ha_mode="exactly", ha_params=2, ha_sync_mode="automatic")
    set_policy(client, "o", operator=True, ha_mode="exactly", ha_params=3, ha_sync_mode="manual")
    found = queue(client)
    assert effective_definition(found.policy, found.operator_policy) == {
        "ha-mode": "exactly",
        "ha-params": 3,
        "ha-sync-mode": "manual",
    }


def test_a_bad_policy_changes_nothing(client: Client) -> None:
    client.queue("q")
    root = client.rig.machine.root()
    code, text = set_policy(client, "p", nonsense=1)
    assert code == 400
    assert text == 'Validation failed\n\n[{<<"nonsense">>,1}] are not recognised policy settings\n'
    assert client.rig.define("policy", "none", "p", {})[0] in (400, 404)
    assert client.rig.machine.root() == root


def test_a_pattern_that_is_no_regular_expression_matches_nothing(client: Client) -> None:
    client.queue("q(")
    assert set_policy(client, "p", "q(", max_length=1) == (201, "")
    assert names(client, "q(") == (None, None)


def test_a_lower_limit_drops_messages_in_slices(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.machine.handlers.policies.TRIMMED_MAX", 3)
    client.queue("grave")
    client.queue("q")
    fill(client, 10)
    set_policy(
        client, "p", "^q$", max_length=2, dead_letter_exchange="", dead_letter_routing_key="grave"
    )
    assert (client.rig.depth("q"), client.rig.depth("grave")) == (7, 3)
    assert client.rig.machine.wants_tick
    restored(client)
    client.rig.pass_time(STEP_US)
    assert (client.rig.depth("q"), client.rig.depth("grave")) == (2, 8)
    assert not client.rig.machine.wants_tick


def test_a_publish_to_many_queues_over_their_limit_stays_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish or return drops at most two messages; the others are dropped at later
    positions."""
    monkeypatch.setattr("broker.machine.handlers.policies.TRIMMED_MAX", 3)
    for name in ("q0", "q1", "q2"):
        client.queue(name)
        client.bind(name, "amq.fanout")
    for _ in range(20):
        client.publish("", b"m", "amq.fanout")
    set_policy(client, "p", max_length=1)
    before = sum(client.rig.depth(f"q{n}") for n in range(3))
    client.publish("", b"m", "amq.fanout")
    assert sum(client.rig.depth(f"q{n}") for n in range(3)) == before + 3 - 6 - 3
    while client.rig.machine.wants_tick:
        client.rig.tick("a", 0)
    assert [client.rig.depth(f"q{n}") for n in range(3)] == [1, 1, 1]


def test_a_lower_limit_drops_nothing_from_a_reject_publish_queue(client: Client) -> None:
    client.queue("q")
    fill(client, 5)
    set_policy(client, "p", max_length=2, overflow="reject-publish")
    assert client.rig.depth("q") == 5
    client.publish("q", b"x", no=1)
    assert [one.ack for one in client.confirms()] == [False]
    client.get("q")
    client.nack(1)
    assert client.rig.depth("q") == 5, "returned messages are not dropped, either"
    assert not client.rig.machine.wants_tick


def test_a_time_to_live_applies_to_waiting_messages(client: Client) -> None:
    client.queue("q")
    fill(client, 3)
    assert not client.rig.machine.wants_tick
    set_policy(client, "p", message_ttl=1000)
    restored(client)
    client.rig.pass_time(900_000)
    assert client.rig.depth("q") == 3
    client.rig.pass_time(LATER_US + 100_000)
    assert client.rig.depth("q") == 0
    fill(client, 1)
    clear_policy(client, "p")
    assert not client.rig.machine.wants_tick, "without the policy the message lives for ever"


def test_expires_counts_from_the_change_of_the_policy(client: Client) -> None:
    client.queue("q")
    client.queue("clock", {"x-message-ttl": 60_000})
    client.publish("clock", b"")
    client.rig.pass_time(5_000_000)
    set_policy(client, "p", "^q", expires=1000)
    restored(client)
    client.rig.pass_time(900_000)
    assert client.rig.has_queue("q")
    set_policy(client, "p", "^q", expires=2000)
    client.rig.pass_time(1_500_000)
    assert client.rig.has_queue("q")
    client.rig.pass_time(500_000 + LATER_US)
    assert not client.rig.has_queue("q")


def test_expires_spares_a_queue_with_a_consumer(client: Client) -> None:
    client.queue("q")
    client.consume("q")
    set_policy(client, "p", expires=1000)
    assert not client.rig.machine.wants_tick
    client.cancel()
    clear_policy(client, "p")
    assert not client.rig.machine.wants_tick


def test_a_policy_sets_an_alternate_exchange(client: Client) -> None:
    client.queue("rest")
    client.exchange("orders")
    client.exchange("own", arguments={"alternate-exchange": "amq.direct"})
    client.exchange("spill", "fanout")
    client.bind("rest", "spill")
    assert client.publish("k", exchange="orders") == c.UNROUTABLE
    set_policy(client, "p", "orders|own", apply_to="exchanges", alternate_exchange="spill")
    assert client.publish("k", exchange="orders") == c.OK
    assert client.publish("k", exchange="own") == c.UNROUTABLE
    restored(client)
    assert client.publish("k", exchange="orders") == c.OK
    clear_policy(client, "p")
    assert client.publish("k", exchange="orders") == c.UNROUTABLE
    assert client.rig.depth("rest") == 2


def test_returns_are_no_longer_counted_without_a_limit(client: Client) -> None:
    client.queue("q")
    fill(client, 1)
    set_policy(client, "p", delivery_limit=5)
    client.get("q")
    client.nack(1)
    assert queue(client).returns
    clear_policy(client, "p")
    assert not queue(client).returns


def test_a_policy_reaches_many_queues_in_slices(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.machine.handlers.policies.POLICIES_WORK_MAX", 66)
    for number in range(16):
        client.queue(f"q{number}")
    set_policy(client, "p", "^q", max_length=1)
    assert [names(client, f"q{n}")[0] for n in range(16)] == ["p"] * 3 + [None] * 13
    restored(client)
    set_policy(client, "p", "^q", max_length=2)
    assert [queue(client, f"q{n}").max_length for n in range(16)] == [1] * 3 + [2] * 3 + [-1] * 10
    restored(client)
    client.queue("q16")
    assert queue(client, "q16").max_length == 2, "declared while the slices were under way"
    client.delete("q15")
    assert client.rig.machine.wants_tick
    client.rig.pass_time(STEP_US)
    assert [queue(client, f"q{n}").max_length for n in range(15)] == [2] * 15
    assert not client.rig.machine.stale


def test_deleted_queues_leave_no_policy_work(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: a snapshot holds no deleted queues, and a tick reports whether work remains."""
    monkeypatch.setattr("broker.machine.handlers.policies.POLICIES_WORK_MAX", 1)
    other = client.rig.client()
    for name in ("first", "second"):
        client.queue(name)
    other.queue("mine", exclusive=True)
    set_policy(client, "p", max_length=3)
    other.close()
    restored(client)
    client.rig.tick("a", 0)


def test_a_virtual_host_is_deleted_with_its_policies(client: Client) -> None:
    rig = client.rig
    other = rig.client("b", "other")
    other.queue("q")
    body: Table = {"pattern": "", "definition": {"max-length": 1}, "priority": 0, "apply-to": "all"}
    assert rig.define("policy", "other", "p", body) == (201, "")
    assert rig.machine.vhosts["other"].queues["q"].max_length == 1
    rig.define("vhost", "", "other", None)
    restored(client)
    other.queue("late")
    other.close()
    assert "other" not in rig.machine.vhosts
    rig.client("b", "other").queue("q")
    assert rig.machine.vhosts["other"].queues["q"].max_length == -1
