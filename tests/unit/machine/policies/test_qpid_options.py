"""Queues declared with the options of Qpid's C++ broker."""

import pytest

from broker.machine import commands as c
from broker.machine.image.invariants import check
from broker.machine.machine import Machine
from broker.machine.policies import qpid_options
from tests.support.three_machines import Client, Rig


@pytest.fixture
def client() -> Client:
    return Rig().client()


def arguments_of(client: Client, name: str = "q") -> c.Table:
    return client.rig.machine.vhosts["/"].queues[name].arguments


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"qpid.max_count": 5}, {"x-max-length": 5, "x-overflow": "reject-publish"}),
        (
            {"qpid.max_size": 9, "qpid.policy_type": "ring"},
            {"x-max-length-bytes": 9, "x-overflow": "drop-head"},
        ),
        (
            {"qpid.max_count": 5, "qpid.policy_type": "ring_strict"},
            {"x-max-length": 5, "x-overflow": "drop-head"},
        ),
        ({"qpid.max_count": 5, "qpid.policy_type": "flow_to_disk"}, {}),
        ({"qpid.max_count": 0, "qpid.max_size": 0}, {}),
        ({"qpid.policy_type": "reject"}, {"x-overflow": "reject-publish"}),
        (
            {"qpid.max_count": 5, "x-overflow": "reject-publish-dlx"},
            {"x-max-length": 5, "x-overflow": "reject-publish-dlx"},
        ),
        ({"qpid.priorities": 10}, {"x-max-priority": 9}),
        ({"qpid.auto_delete_timeout": 60}, {"x-expires": 60_000}),
        ({"qpid.auto_delete_timeout": 0}, {}),
        ({"qpid.browse-only": 1}, {"qpid.browse-only": True}),
        ({"qpid.browse-only": False}, {}),
        ({"qpid.replicate": "all", "qpid.file_count": 8, "qpid.paging": True, "mine": 1},
         {"mine": 1}),
        ({"qpid.replicate": "configuration"}, {}),
        ({"qpid.replicate": "none"}, {}),
    ],
)  # fmt: skip
def test_an_option_is_stored_as_its_rabbitmq_argument(
    client: Client, given: c.Table, kept: c.Table
) -> None:
    assert client.queue("q", given) == c.OK
    assert arguments_of(client) == kept
    assert client.queue("q", given) == c.OK, "the same declaration"
    assert client.queue("q", kept) == c.OK, "the same, written with RabbitMQ's arguments"
    copy = Machine.restore("b", client.rig.machine.snapshot())
    check(copy)
    assert copy.vhosts["/"].queues["q"].arguments == kept


def test_an_inequivalent_declaration_names_the_rabbitmq_argument(
    client: Client,
) -> None:
    client.queue("q", {"qpid.max_count": 5})
    assert client.queue("q", {"qpid.max_count": 6}) == 406
    assert "inequivalent arg 'x-max-length'" in client.error()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"qpid.max_count": -1}, "a whole number from 0"),
        ({"qpid.max_count": "5"}, "a whole number from 0"),
        ({"qpid.max_count": 5, "x-max-length": 5}, "it stands for x-max-length, which is given"),
        (
            {"qpid.policy_type": "self-destruct"},
            "unsupported policy 'self-destruct': one of reject",
        ),
        ({"qpid.policy_type": {"a": 1}}, "unsupported policy"),
        ({"qpid.priorities": 3}, "use x-max-priority"),
        ({"qpid.priorities": 257}, "a whole number from 9 to 256"),
        ({"qpid.priorities": True}, "a whole number from 9 to 256"),
        ({"qpid.auto_delete_timeout": 1 << 60}, "a whole number from 0"),
        (
            {"qpid.replicate": "some"},
            "invalid replication value 'some': one of none, configuration",
        ),
        ({"qpid.nothing": 1}, "not known to this broker"),
    ],
)
def test_an_option_with_another_meaning_here_is_refused(
    client: Client, given: c.Table, words: str
) -> None:
    assert client.queue("q", given) == 406
    assert words in client.error()
    assert next(iter(given)) in client.error()
    assert not client.rig.has_queue("q")


@pytest.mark.parametrize("option", qpid_options.REFUSED)
def test_an_unsupported_option_is_refused_by_name(client: Client, option: str) -> None:
    assert client.queue("q", {option: 1}) == 406
    assert f"invalid arg '{option}' for queue 'q' in vhost '/': not supported" in client.error()


@pytest.mark.parametrize("option", qpid_options.HINTS)
def test_an_option_without_effect_is_accepted_and_not_stored(client: Client, option: str) -> None:
    assert client.queue("q", {option: 1}) == c.OK
    assert arguments_of(client) == {}


def test_a_passive_declare_ignores_options(client: Client) -> None:
    client.queue("q")
    assert client.queue("q", {"qpid.nothing": 1}, passive=True) == c.OK


def test_an_auto_delete_queue_with_a_timeout_outlives_its_last_consumer(client: Client) -> None:
    timed: c.Table = {"qpid.auto_delete_timeout": 1}
    assert client.queue("q", timed, auto_delete=True) == c.OK
    client.consume("q")
    client.cancel()
    assert client.rig.has_queue("q")
    assert client.queue("q", timed, auto_delete=True) == c.OK
    client.rig.pass_time(3_000_000)
    assert not client.rig.has_queue("q")
    assert client.queue("mine", timed, exclusive=True) == 406
    assert "an exclusive queue goes with its connection" in client.error()


def test_a_ring_queue_drops_its_oldest_and_a_full_queue_rejects(client: Client) -> None:
    client.queue("ring", {"qpid.max_count": 2, "qpid.policy_type": "ring"})
    client.queue("full", {"qpid.max_count": 2})
    refused = []
    for number, body in enumerate((b"1", b"2", b"3"), 1):
        for queue in ("ring", "full"):
            client.publish(queue, body, no=number)
            refused += [(queue, body) for one in client.confirms() if not one.ack]
    assert refused == [("full", b"3")]
    client.consume("ring")
    assert [body for _, body, _ in client.deliveries()] == [b"2", b"3"]
