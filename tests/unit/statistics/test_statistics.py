"""Rates and totals of the machine's counts, in the shape RabbitMQ's tools read."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeAlias, cast

from broker.machine.machine import Machine
from broker.machine.state import Channel, Queue
from broker.replication.controller import Controller
from broker.statistics.statistics import Statistics
from tests.support.observed import MEMBERS, Observed
from tests.support.three_machines import Client


def queue_of(seen: Observed, name: str = "q") -> Queue:
    machine: Machine = seen.fake.replica.machine
    return machine.vhosts["/"].queues[name]


def channel_of(seen: Observed, client: Client) -> Channel:
    machine: Machine = seen.fake.replica.machine
    return machine.channels[client.session, client.conn, client.chan]


Json: TypeAlias = Any


def stats(fragment: dict[str, object]) -> Json:
    return fragment["message_stats"]


def publishing(seen: Observed, member: str = "b") -> Client:
    client = seen.rig.client(member)
    client.queue("q")
    seen.sweep()
    return client


def test_a_rate_is_what_happened_between_two_sweeps() -> None:
    seen = Observed()
    client = publishing(seen)
    for _ in range(6):
        client.publish("q", no=0)
    seen.sweep(2.0)
    found = stats(seen.statistics.queue(queue_of(seen)))
    assert found["publish"] == 6
    assert found["publish_details"]["rate"] == 3.0
    assert stats(seen.statistics.channel(channel_of(seen, client)))["publish_details"]["rate"] == 3
    assert seen.statistics.queue(queue_of(seen))["messages_ready_details"] == {"rate": 3.0}


def test_a_one_minute_rate_lasts_longer_than_a_one_second_rate() -> None:
    seen = Observed()
    client = publishing(seen)
    for _ in range(30):
        client.publish("q")
        client.get("q", no_ack=True)
    seen.sweep()
    for _ in range(29):
        seen.sweep()
    for name in ("publish_details", "deliver_get_details"):
        details = stats(seen.statistics.queue(queue_of(seen)))[name]
        assert (details["rate"], details["avg_rate"]) == (0.0, 1.0)
    for _ in range(90):
        seen.sweep()
    assert seen.statistics.sampler.rates(queue_of(seen).tally) is None
    assert stats(seen.statistics.queue(queue_of(seen)))["publish_details"]["avg_rate"] == 0


def test_a_one_minute_rate_forgets_older_events() -> None:
    seen = Observed()
    client = publishing(seen)
    for second in range(150):
        if second < 50:
            client.publish("q")
        client.get("q", no_ack=True)
        seen.sweep()
    details = stats(seen.statistics.queue(queue_of(seen)))
    assert details["publish_details"]["avg_rate"] == 0.0
    assert details["get_empty_details"]["avg_rate"] == 1.0


def test_counts_before_the_first_sweep_make_no_rate() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("q")
    client.publish("q")
    seen.sweep()
    seen.sweep()
    assert stats(seen.statistics.queue(queue_of(seen)))["publish_details"]["rate"] == 0.0


def test_a_new_queue_has_a_rate_at_once() -> None:
    seen = Observed()
    client = seen.rig.client()
    seen.sweep()
    client.queue("q")
    client.publish("q")
    seen.sweep()
    assert stats(seen.statistics.queue(queue_of(seen)))["publish_details"]["rate"] == 1.0


def test_another_machine_starts_new_counts() -> None:
    seen = Observed()
    client = publishing(seen)
    client.publish("q")
    seen.sweep()
    before = seen.fake.replica.machine
    seen.fake.replica.machine = Machine.restore("a", before.snapshot())
    seen.sweep()
    assert seen.statistics.overview()["message_stats"] == {}
    assert seen.statistics.sampler.depths.ready == 1


def slices(seconds: int) -> Callable[[], bool]:
    looks = iter([True] * seconds)
    return lambda: next(looks, False)


def test_a_sweep_over_many_objects_continues_in_later_steps() -> None:
    seen = Observed()
    client = seen.rig.client()
    for number in range(100):
        client.queue(f"q{number}")
    steps = 0
    while not seen.statistics.sampler.sweeps:
        seen.sweep(0.1, slices(2))
        steps += 1
        if steps == 2:
            client.delete("q99")  # while its sweep is under way
    assert steps > 2
    seen.sweep()
    assert seen.statistics.sampler.depths.queues == 99


def test_queues_that_come_and_go_between_sweeps_count_once() -> None:
    seen = Observed()
    client = seen.rig.client()
    other = seen.rig.client(vhost="other")
    for number in range(3):
        client.queue(f"q{number}")
        other.queue(f"q{number}")
        seen.sweep()
    client.delete("q0")
    client.queue("q0")
    other.delete("q1")
    seen.sweep()
    assert {name: one.queues for name, one in seen.statistics.sampler.by_vhost.items()} == {
        "/": 3, "other": 2,
    }  # fmt: skip
    assert seen.statistics.sampler.depths.queues == 5


def test_an_idle_object_keeps_no_history() -> None:
    seen = Observed()
    publishing(seen)
    seen.sweep()
    assert seen.statistics.sampler.rates(queue_of(seen).tally) is None
    assert "message_stats" not in seen.statistics.queue(queue_of(seen))


def test_deliveries_and_gets_are_also_shown_together() -> None:
    seen = Observed()
    client = publishing(seen)
    for _ in range(3):
        client.publish("q")
    client.get("q", no_ack=True)
    client.get("q")
    client.consume("q")
    seen.sweep()
    found = stats(seen.statistics.queue(queue_of(seen)))
    assert (found["deliver_get"], found["deliver_get_details"]["rate"]) == (3, 3.0)


def test_an_exchange_shows_its_input_and_output() -> None:
    seen = Observed()
    client = publishing(seen)
    client.bind("q", "amq.fanout")
    client.publish("", exchange="amq.fanout")
    seen.sweep()
    fanout = seen.fake.replica.machine.vhosts["/"].exchanges["amq.fanout"]
    found = stats(seen.statistics.exchange(fanout))
    assert (found["publish_in"], found["publish_out"]) == (1, 1)
    assert found["publish_out_details"]["rate"] == 1.0


def test_every_members_overview_covers_all_members() -> None:
    ours = Observed("a")
    theirs = Observed("c", ours.rig)
    client = publishing(ours)
    theirs.sweep()
    client.publish("q")
    client.publish("q")
    client.get("q")
    ours.sweep()
    theirs.sweep()
    found = ours.statistics.overview()
    assert found == theirs.statistics.overview()
    assert stats(found)["publish_details"]["rate"] == 2.0
    assert found["queue_totals"] == {
        "messages": 2, "messages_ready": 1, "messages_unacknowledged": 1,
        "messages_details": {"rate": 2.0}, "messages_ready_details": {"rate": 1.0},
        "messages_unacknowledged_details": {"rate": 1.0},
    }  # fmt: skip
    churn: Any = found["churn_rates"]
    assert (churn["connection_created"], churn["queue_created"]) == (1, 1)
    assert ours.statistics.vhost("/")["messages"] == 2
    assert ours.statistics.vhost("elsewhere") == {}


def test_each_queue_is_reported_by_one_member() -> None:
    ours = Observed("a")
    all_three = [ours, Observed("b", ours.rig), Observed("c", ours.rig)]
    client = ours.rig.client()
    for number in range(10):
        client.queue(f"q{number}")
    for seen in all_three:
        seen.sweep()
    shares = [seen.statistics.sampler.share.queues for seen in all_three]
    assert sorted(shares) == [3, 3, 4]
    queues = [queue_of(ours, f"q{number}") for number in range(10)]
    assert [sum(map(seen.statistics.is_mine, queues)) for seen in all_three] == shares
    assert [seen.statistics.is_first for seen in all_three] == [True, False, False]
    for seen in all_three:
        seen.fake.primary.mark.without_data = frozenset("b")
        seen.sweep()
    shares = [seen.statistics.sampler.share.queues for seen in all_three]
    assert shares == [5, 0, 5]
    ours.fake.serving = False
    ours.sweep()
    assert ours.statistics.sampler.share.queues == 0
    assert ours.statistics.home(queue_of(ours, "q0")) == ""


def test_the_queues_that_are_left_are_counted_once_after_others_are_deleted() -> None:
    seen = Observed()
    client = seen.rig.client()
    for number in range(100):
        client.queue(f"q{number}")
        client.publish(f"q{number}", no=0)
    seen.sweep()
    for number in range(0, 100, 2):
        client.delete(f"q{number}")
    for _ in range(3):
        seen.sweep()
        assert seen.statistics.sampler.depths[:3] == (50, 0, 50)


def test_messages_that_came_back_to_their_queue_are_ready() -> None:
    seen = Observed()
    client = publishing(seen)
    client.publish("q", no=0)
    client.get("q")
    seen.sweep()
    assert seen.statistics.sampler.depths[:2] == (0, 1)
    client.nack(1)
    seen.sweep()
    assert seen.statistics.sampler.depths[:2] == (1, 0)


def test_what_was_there_before_the_first_sweep_is_no_rate() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("q")
    for _ in range(9):
        client.publish("q", no=0)
    seen.sweep()
    assert seen.statistics.sampler.depth_rates == (0.0, 0.0)
    client.publish("q", no=0)
    seen.sweep()
    assert seen.statistics.sampler.depth_rates == (1.0, 0.0)


def test_a_queue_is_noted_as_stuck_only_after_a_minute_was_observed() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("q")
    client.qos(1)
    client.consume("q")
    client.publish("q", no=0)
    client.publish("q", no=0)
    counts = []
    for _ in range(130):
        seen.sweep()
        counts.append(seen.statistics.sampler.noted.stuck.count)
    assert counts.index(1) >= 60
    assert counts[-1] == 1


def test_voters_that_are_not_in_the_view_are_counted_as_away() -> None:
    seen = Observed()
    assert seen.statistics.members_away == 0
    seen.fake.primary.members = MEMBERS[:1]
    assert seen.statistics.members_away == 2


def test_a_members_churn_is_that_of_its_own_clients() -> None:
    seen = Observed()
    for member in ("a", "b", "b"):
        seen.rig.client(member)
    seen.sweep()
    opened = [seen.statistics.node(name)["connection_created"] for name in "abc"]
    assert opened == [1, 2, 0]


def test_a_members_figures_have_rabbitmqs_names_and_units() -> None:
    seen = Observed()
    seen.figures |= {
        "uptime_s": 3.5, "memory_bytes": 10.0, "memory_limit_bytes": 20.0, "disk_free_bytes": 30.0,
        "disk_free_limit_bytes": 40.0, "open_fds": 50.0, "max_fds": 60.0, "client_sockets": 70.0,
        "store_commit_p50_s": 0.008,
    }  # fmt: skip
    seen.sweep()
    wanted: dict[str, object] = {
        "uptime": 3500, "mem_used": 10, "mem_limit": 20, "disk_free": 30, "disk_free_limit": 40,
        "fd_used": 50, "fd_total": 60, "sockets_used": 70, "sockets_total": 60,
        "io_sync_avg_time": 8.0,
    }  # fmt: skip
    found = seen.statistics.node("a")
    assert {name: found[name] for name in wanted} == wanted


def test_times_follow_a_clock_that_is_set() -> None:
    seen = Observed()
    ahead_ms = 0
    seen.statistics = Statistics(
        cast("Controller", seen.fake), seen.members, lambda: round(seen.now * 1000) + ahead_ms
    )
    seen.sweep()
    publishing(seen).publish("q", no=0)
    seen.sweep()
    seen.sweep()
    before = idle_since(seen)
    ahead_ms = 999  # as of the two clocks' drift: times that were shown stay as they are
    seen.sweep()
    assert idle_since(seen) == before
    ahead_ms = 3_600_000
    seen.sweep()
    assert idle_since(seen) - before == timedelta(hours=1)


def idle_since(seen: Observed) -> datetime:
    found = seen.statistics.queue(queue_of(seen))["idle_since"]
    return datetime.fromisoformat(str(found))


def test_since_when_a_queue_is_idle() -> None:
    """As flower reads it: when something last happened, as far as this member has seen."""
    seen = Observed()
    seen.sweep()
    client = publishing(seen)
    seen.sweep()
    before = seen.statistics.queue(queue_of(seen))["idle_since"]
    client.publish("q", no=0)
    seen.sweep()
    assert "idle_since" not in seen.statistics.queue(queue_of(seen))
    seen.sweep(90.0)
    found = seen.statistics.queue(queue_of(seen))["idle_since"]
    assert (before, found) == ("1970-01-01T00:16:42.000+00:00", "1970-01-01T00:16:44.000+00:00")


def test_objects_older_than_this_members_observation_have_no_idle_time() -> None:
    seen = Observed()
    seen.rig.client("b").queue("q")
    seen.sweep()
    seen.sweep()
    assert "idle_since" not in seen.statistics.queue(queue_of(seen))


def test_a_connection_and_a_user_add_up_their_channels() -> None:
    seen = Observed()
    client = publishing(seen)
    other = client.channel(2)
    for one in (client, other, other):
        one.publish("q", no=0)
    seen.sweep()
    connection = channel_of(seen, client).connection
    assert stats(seen.statistics.connection(connection))["publish"] == 3
    found = seen.statistics.user("guest", list(connection.channels.values()))
    assert (found["connections"], found["channels"]) == (1, 2)
    assert stats(found)["publish_details"]["rate"] == 3.0
