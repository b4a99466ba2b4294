"""The options of a shared store: what goes with it, and what is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.options.broker import broker_options
from broker.options.values import OptionError


def test_it_stands_for_the_data_directory() -> None:
    found = broker_options({"shared-store": "/srv/x", "cluster-name": "shop"})
    assert found.shared_store is not None
    assert found.shared_store == (Path("/srv/x"), 800, None)
    assert found.data_dir is None
    assert not found.clustered, "no ring is looked for: others lead or wait"
    assert broker_options({}).shared_store is None


@pytest.mark.parametrize(
    ("given", "at_fault"),
    [
        ({"data-dir": "/srv/y"}, "data-dir"),
        ({"no-data-dir": "yes"}, "no-data-dir"),
        ({"cluster-name": "shop", "cluster-size": "2"}, "cluster-size"),
        ({"cluster-name": "shop", "cluster-nodes": "10.0.0.1:25672"}, "cluster-nodes"),
        ({"cluster-name": "shop", "cluster-bind": "10.0.0.1:25672"}, "cluster-bind"),
        ({"cluster-name": "shop", "cluster-arbitrator": "h:1"}, "cluster-arbitrator"),
        ({"cluster-name": "shop", "ha-cluster": "yes"}, "ha-cluster"),
        ({"shared-store-lease": "100"}, "shared-store-lease"),
        ({"shared-store-lease": "soon"}, "shared-store-lease"),
    ],
)
def test_what_does_not_go_with_it(given: dict[str, str], at_fault: str, tmp_path: Path) -> None:
    """One sentence that names the option; the directory is not made."""
    with pytest.raises(OptionError) as refused:
        broker_options({"shared-store": str(tmp_path / "store"), **given})
    assert refused.value.option == at_fault
    assert not (tmp_path / "store").exists()


def test_a_lease_needs_a_store() -> None:
    with pytest.raises(OptionError, match="it needs --shared-store"):
        broker_options({"shared-store-lease": "900"})
