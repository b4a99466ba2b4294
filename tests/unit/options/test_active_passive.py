"""Options of active-passive mode: honoured, accepted without effect, or refused with the remedy."""

from __future__ import annotations

import pytest

from broker.options.addresses import Address
from broker.options.broker import BrokerOptions, broker_options
from broker.options.modes.active_passive import ActivePassiveOptions
from broker.options.security import SecurityOptions
from broker.options.values import OptionError

NODES = "127.0.0.1:5672,tcp:127.0.0.1:5673,127.0.0.1:60000"


def options(**given: str) -> BrokerOptions:
    """The options of a cluster member; `_` in names stands for `-`."""
    texts = {name.replace("_", "-"): text for name, text in given.items()}
    return broker_options({"cluster-name": "shop", "no-data-dir": "yes", **texts})


def test_by_default_every_member_takes_clients() -> None:
    assert options().mode is None


def test_the_brokers_url_gives_the_addresses_of_the_ring() -> None:
    """The manual's minimum: ha-cluster and ha-brokers-url."""
    found = options(ha_cluster="yes", ha_brokers_url=f"amqp:{NODES}")
    assert found.mode == ActivePassiveOptions(automatic=True, public_url="", needless=())
    assert found.cluster_size == 3
    assert found.cluster_bind == found.cluster_nodes[0] == Address("127.0.0.1", 25672)
    assert [node.port for node in found.cluster_nodes] == [25672, 25673, 40000]


def test_options_of_the_ring_itself_take_precedence() -> None:
    found = options(
        ha_cluster="yes", ha_brokers_url=NODES, cluster_size="2",
        cluster_nodes="127.0.0.1:7001,127.0.0.1:7002",
    )  # fmt: skip
    assert found.cluster_size == 2
    assert [node.port for node in found.cluster_nodes] == [7001, 7002]


@pytest.mark.parametrize(
    ("interface", "url"),
    [
        ("127.0.0.1", "127.0.0.1,127.0.0.2"),
        ("0.0.0.0", "10.0.0.1,10.0.0.2"),
        ("10.0.0.1", "node1,node2"),
        ("node1", "10.0.0.1,10.0.0.2"),
        ("::1", "[::1],[::2]"),
    ],
)
def test_a_list_that_may_contain_this_member_is_accepted(interface: str, url: str) -> None:
    """Which address a name stands for is not known here."""
    security = {} if interface in ("127.0.0.1", "::1") else {"cluster_mechanism": "ANONYMOUS"}
    found = options(ha_cluster="yes", ha_brokers_url=url, interface=interface, **security)
    assert found.cluster_size == len(found.cluster_nodes) == 2


def test_options_at_their_defaults_are_accepted_while_the_mode_is_off() -> None:
    off = options(ha_cluster="No", ha_promotion="Automatic", ha_queue_replication="NO")
    assert off.mode is None


def test_everything_set() -> None:
    found = options(
        ha_cluster="Yes", ha_promotion="manual", ha_public_url="amqp:ada/secret@10.0.0.9",
        ha_replicate="all", ha_backup_timeout="5.5s", ha_queue_replication="no",
        link_heartbeat_interval="10", link_maintenance_interval="100ms",
    )  # fmt: skip
    mode = found.mode
    assert isinstance(mode, ActivePassiveOptions)
    assert not mode.automatic
    assert mode.backup_timeout_s == 5.5
    assert mode.public_url == "amqp:tcp:10.0.0.9:5672"
    assert [sentence.partition(" has")[0] for sentence in mode.needless] == [
        "--ha-replicate", "--link-heartbeat-interval", "--link-maintenance-interval",
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["none", "Configuration", "all"])
def test_every_replication_level_is_accepted_and_said_to_have_no_effect(level: str) -> None:
    mode = options(ha_cluster="yes", ha_replicate=level).mode
    assert isinstance(mode, ActivePassiveOptions)
    assert mode.needless == (
        "--ha-replicate has no effect: every queue, exchange and message is on every member",
    )


def test_the_credentials_of_backups_are_those_of_the_ring() -> None:
    """As in the original's option file; options of the ring itself take precedence."""
    of_qpid = {"ha_username": "ha", "ha_password": "word", "ha_mechanism": "PLAIN"}
    found = options(ha_cluster="yes", interface="10.0.0.1", **of_qpid)
    assert found.security == SecurityOptions("PLAIN", "ha", "word")
    assert isinstance(found.mode, ActivePassiveOptions)
    assert found.mode.needless == ()
    keys = {"cluster_key": "/k", "cluster_allow": "/a", "cluster_mechanism": "CURVE"}
    found = options(ha_cluster="yes", **of_qpid, **keys)
    assert found.security.mechanism == "CURVE"
    assert isinstance(found.mode, ActivePassiveOptions)
    assert found.mode.needless == tuple(
        f"--{option} has no effect: members show each other what --cluster-... say"
        for option in ("ha-username", "ha-password", "ha-mechanism")
    )


def test_the_mode_is_compared_with_the_other_members() -> None:
    settings = options(ha_cluster="YES").settings
    assert ("ha-cluster", "yes", True) in settings
    assert ("ha-promotion", "automatic", True) in settings
    assert ("ha-cluster", "no", True) in options().settings


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"ha_cluster": "maybe"}, "ha-cluster", "neither yes nor no"),
        ({"ha_promotion": "manual"}, "ha-promotion", "it needs --ha-cluster yes"),
        ({"ha_brokers_url": NODES}, "ha-brokers-url", "it needs --ha-cluster yes"),
        ({"ha_cluster": "yes", "cluster_name": ""}, "ha-cluster", "it needs --cluster-name"),
        (
            {"ha_cluster": "yes", "ha_brokers_url": NODES, "cluster_name": ""},
            "ha-cluster",
            "it needs --cluster-name",
        ),
        ({"ha_cluster": "yes", "ha_promotion": "me"}, "ha-promotion", "automatic, manual"),
        ({"ha_cluster": "yes", "ha_replicate": "some"}, "ha-replicate", "none, configuration, all"),
        ({"ha_cluster": "yes", "ha_backup_timeout": "soon"}, "ha-backup-timeout", "0.5, 100ms"),
        ({"ha_queue_replication": "often"}, "ha-queue-replication", "neither yes nor no"),
        ({"ha_username": "u", "ha_password": "p"}, "ha-username", "it needs --ha-cluster yes"),
        ({"ha_cluster": "yes", "ha_username": "u"}, "cluster-password", "PLAIN needs it"),
        (
            {"ha_cluster": "yes", "ha_mechanism": "DIGEST-MD5"},
            "ha-mechanism",
            "members do not speak 'DIGEST-MD5' to each other: say PLAIN, or .* keys",
        ),
        ({"ha_cluster": "yes", "ha_brokers_url": "rdma:h"}, "ha-brokers-url", "tcp and ssl only"),
        (
            {"ha_cluster": "yes", "ha_brokers_url": "amqp:127.0.0.1:5673,127.0.0.1:5674"},
            "ha-brokers-url",
            "lists 127.0.0.1:25673, 127.0.0.1:25674, and this member's, 127.0.0.1:25672, is not",
        ),
        (
            {"ha_cluster": "yes", "ha_brokers_url": "a,b", "interface": "0.0.0.0", "port": "5673"},
            "ha-brokers-url",
            "this member's, 0.0.0.0:25673, is not among them",
        ),
        (
            {"ha_cluster": "yes", "ha_brokers_url": "tcp:127.0.0.1,ssl:10.0.0.2"},
            "ha-brokers-url",
            "'ssl:10.0.0.2:5671' is a port for TLS.*give --cluster-nodes",
        ),
        (
            {
                "ha_cluster": "yes",
                "ha_brokers_url": "127.0.0.1,ssl:127.0.0.1",
                "cluster_nodes": "127.0.0.1:25672,127.0.0.1:7002",
            },
            "cluster-size",
            "it is not given",
        ),
        ({"ha_cluster": "yes", "ha_public_url": "/p@h"}, "ha-public-url", "no user name"),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as refused:
        options(**given)
    assert refused.value.option == option
