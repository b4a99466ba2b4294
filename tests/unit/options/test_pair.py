"""Options of a pair: what follows from them, and what they are incompatible with."""

from __future__ import annotations

import pytest

from broker.options.addresses import Address
from broker.options.broker import BrokerOptions, broker_options
from broker.options.modes.pair import PairOptions
from broker.options.values import OptionError
from vsync.primary.settings import disagreement

OWN, OTHER = "127.0.0.1:25672", "127.0.0.2:25672"


def options(**given: str) -> BrokerOptions:
    texts = {name.replace("_", "-"): text for name, text in given.items()}
    base = {"cluster-name": "shop", "no-data-dir": "yes", "cluster-bind": OWN}
    return broker_options({**base, **texts})


def test_no_member_is_in_a_pair_by_default() -> None:
    assert options().mode is None


@pytest.mark.parametrize(("seat", "kept"), [("primary", OTHER), ("Backup", OWN)])
def test_the_defaults_that_hac_implies(seat: str, kept: str) -> None:
    """O11: one word and one address; the peer's port defaults to this member's."""
    found = options(hac=seat, hac_peer="127.0.0.2")
    assert found.mode == PairOptions("hac", seat.lower(), OTHER, kept)
    assert (found.cluster_size, found.cluster_nodes) == (2, (Address("127.0.0.2", 25672),))
    assert found.requested == (f"@pair={kept}",)
    assert ("pair-mode", "hac", True) in found.settings


def test_the_master_names_nobody_and_the_slave_names_the_master() -> None:
    """A6."""
    master, slave = (
        options(master_slave="master"),
        options(cluster_bind=OTHER, master_slave="slave", master_connector=OWN),
    )
    assert master.requested == slave.requested == (f"@pair={OWN}",)
    assert master.cluster_nodes == ()
    assert isinstance(master.mode, PairOptions)
    assert master.mode.lets_the_other_lead
    ending = options(master_slave="master", shutdown_on_master_failure="yes").mode
    assert isinstance(ending, PairOptions)
    assert not ending.lets_the_other_lead
    assert ending.settings != master.mode.settings


def test_both_members_request_the_same_voters() -> None:
    primary = options(hac="primary", hac_peer=OTHER)
    backup = options(cluster_bind=OTHER, hac="backup", hac_peer=OWN)
    assert primary.requested == backup.requested
    assert {s for s in primary.settings if s[2]} == {s for s in backup.settings if s[2]}
    assert disagreement({}) == ""


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({"hac": "first", "hac_peer": OTHER}, "hac", "not one of primary, backup"),
        ({"hac": "primary"}, "hac", "needs --hac-peer"),
        ({"hac": "primary", "hac_peer": OWN}, "hac-peer", "is this member itself"),
        ({"hac": "primary", "hac_peer": "a:b"}, "hac-peer", "not a port number"),
        ({"hac_peer": OTHER}, "hac-peer", "needs --hac"),
        ({"hac": "primary", "hac_peer": OTHER, "cluster_name": "", "cluster_bind": ""}, "hac",
         "needs --cluster-name"),
        ({"hac": "primary", "hac_peer": OTHER, "master_slave": "slave"}, "master-slave",
         "one mode"),
        ({"hac": "primary", "hac_peer": OTHER, "cluster_size": "3"}, "cluster-size", "say 2"),
        ({"hac": "primary", "hac_peer": OTHER, "ha_cluster": "yes"}, "ha-cluster", "of their own"),
        ({"hac": "primary", "hac_peer": OTHER, "cluster_two_node": "yes"}, "cluster-two-node",
         "of their own"),
        ({"hac": "primary", "hac_peer": OTHER, "shutdown_on_master_failure": "yes"},
         "shutdown-on-master-failure", "of --master-slave"),
        ({"hac": "primary", "hac_peer": OTHER, "cluster_bind": "0.0.0.0:1",
          "cluster_mechanism": "ANONYMOUS"}, "cluster-bind", "give --cluster-bind HOST:PORT"),
        ({"master_slave": "slave"}, "master-slave", "needs --master-connector"),
        ({"master_slave": "boss"}, "master-slave", "not one of master, slave"),
        ({"master_slave": "master", "master_connector": OTHER}, "master-connector", "drop it"),
        ({"master_slave": "slave", "master_connector": OWN}, "master-connector", "itself"),
        ({"master_slave": "slave", "master_connector": OTHER, "hac_peer": OTHER}, "hac-peer",
         "of --hac"),
        ({"master_slave": "master", "master_failure_timeout": "x"}, "master-failure-timeout",
         "whole number"),
        ({"master_failure_timeout": "5"}, "master-failure-timeout", "needs --master-slave"),
    ],
)  # fmt: skip
def test_incompatible_options_are_refused(given: dict[str, str], option: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        options(**given)
    assert refused.value.option == option
