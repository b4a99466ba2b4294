"""Every pair of modes, and every option of a mode with every other mode.

They are compatible, or one sentence names the option at fault, before anything is looked up or
created.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest

from broker.options.broker import broker_options
from broker.options.modes import active_passive, pair, shared_store
from broker.options.values import OptionError

OWN, OTHER = "127.0.0.1:25672", "127.0.0.1:25673"
MODES: Mapping[str, Mapping[str, str]] = {
    "active-passive": {"ha-cluster": "yes", "ha-brokers-url": "127.0.0.1:5672,127.0.0.1:5673"},
    "hac": {"hac": "primary", "hac-peer": OTHER},
    "master": {"master-slave": "master"},
    "slave": {"master-slave": "slave", "master-connector": OTHER},
    "shared store": {"shared-store": "{here}/store"},
    "arbitrator": {"cluster-arbitrator": "127.0.0.1:7000"},
    "two node": {"cluster-two-node": "yes"},
    "tie breaker": {"cluster-auto-tie-breaker": "lowest"},
    "last man standing": {"cluster-last-man-standing": "yes"},
    "wait for all": {"cluster-wait-for-all": "yes"},
    "cman": {"cluster-cman": "yes"},
    "votes": {"cluster-votes": f"{OWN}=2"},
    "multicast": {"cluster-mcastaddr": "239.1.1.1"},
    "no data": {"no-data-dir": "yes"},
    "keys": {"cluster-key": "/k", "cluster-allow": "/a"},
}
QUORUM = {"two node", "tie breaker", "last man standing", "wait for all", "cman", "votes"}
RING = {*QUORUM, "arbitrator", "multicast", "no data", "keys"}
PAIRS = {"hac", "master", "slave"}
APART = {
    *(frozenset(pair) for pair in combinations(("active-passive", "shared store", *PAIRS), 2)),
    *(frozenset((pair, rule)) for pair in PAIRS for rule in {*QUORUM, "arbitrator", "multicast"}),
    *(frozenset(("shared store", of_ring)) for of_ring in RING),
    frozenset(("active-passive", "two node")),  # of two: only an arbitrator may make that safe
    frozenset(("active-passive", "multicast")),  # its list of brokers says where they are
    frozenset(("last man standing", "arbitrator")),
}
"""What does not go together; all else does."""
CREDENTIALS = {"ha-username": "u", "ha-password": "p"}
ALONE: Mapping[str, tuple[Mapping[str, str], set[str]]] = {
    "ha-promotion": ({"ha-promotion": "manual"}, {"active-passive"}),
    "ha-brokers-url": ({"ha-brokers-url": "127.0.0.1:5672"}, {"active-passive"}),
    "ha-public-url": ({"ha-public-url": "10.0.0.9"}, {"active-passive"}),
    "ha-backup-timeout": ({"ha-backup-timeout": "10"}, {"active-passive"}),
    "ha-replicate": ({"ha-replicate": "none"}, {"active-passive"}),
    "ha-username": (CREDENTIALS, {"active-passive"}),
    "ha-password": (CREDENTIALS, {"active-passive"}),
    "ha-mechanism": ({"ha-mechanism": "ANONYMOUS"}, {"active-passive"}),
    "shutdown-on-master-failure": ({"shutdown-on-master-failure": "yes"}, {"master", "slave"}),
    "master-failure-timeout": ({"master-failure-timeout": "5"}, {"master", "slave"}),
    "hac-peer": ({"hac-peer": OTHER}, {"hac"}),
    "master-connector": ({"master-connector": OTHER}, {"slave"}),
    "shared-store-lease": ({"shared-store-lease": "900"}, {"shared store"}),
    "shared-store-lock": ({"shared-store-lock": "sqlite:///x/y"}, {"shared store"}),
}
"""Options that mean something in some modes only: with a value that is no default, and these."""
ANYWHERE = {"ha-queue-replication", "link-heartbeat-interval", "link-maintenance-interval"}
"""Qpid's for federation as well."""


def fault_of(here: Path, *parts: Mapping[str, str]) -> str:
    """The option at fault; empty if they are compatible."""
    given = {"cluster-name": "shop"}
    for part in parts:
        given |= {name: text.format(here=here) for name, text in part.items()}
    if not given.keys() & {"shared-store", "no-data-dir"}:
        given["data-dir"] = f"{here}/data"
    try:
        broker_options(given)
    except OptionError as error:
        fault = error
    else:
        return ""
    assert list(here.iterdir()) == []
    assert 10 < len(fault.reason) < 260
    assert "\n" not in fault.reason
    assert fault.option in given, f"{fault.option} was not given: {fault.reason}"
    return fault.option


def test_each_mode_is_valid_alone(tmp_path: Path) -> None:
    assert [name for name, mode in MODES.items() if fault_of(tmp_path, mode)] == []


@pytest.mark.parametrize("name", MODES)
def test_with_every_other_mode(tmp_path: Path, name: str) -> None:
    others = MODES.keys() - {name} - (PAIRS if name in PAIRS else set())
    refused = {
        other
        for other in others
        if fault_of(tmp_path, MODES[name], MODES[other])
        or fault_of(tmp_path, MODES[other], MODES[name])
    }
    assert refused == {other for other in others if frozenset((name, other)) in APART}


@pytest.mark.parametrize("option", ALONE)
def test_an_option_of_one_mode_with_every_other(tmp_path: Path, option: str) -> None:
    given, home = ALONE[option]
    taken = {name for name, mode in MODES.items() if not fault_of(tmp_path, mode, given)}
    assert taken == home


def test_no_option_of_a_mode_is_missing_here() -> None:
    known = {name for mode in MODES.values() for name in mode} | ALONE.keys() | ANYWHERE
    options = shared_store.DEFAULTS.keys() | active_passive.DEFAULTS.keys() | pair.DEFAULTS.keys()
    assert options <= known
