"""Options of a shared store: what they are compatible with, and what is refused before anything
is created."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker.options.broker import broker_options
from broker.options.modes.shared_store import DatabaseLock, SharedStoreOptions
from broker.options.values import OptionError


def test_the_shared_store_replaces_the_data_directory() -> None:
    found = broker_options({"shared-store": "/srv/x", "cluster-name": "shop"})
    assert found.mode == (Path("/srv/x"), 800, None)
    assert found.data_dir is None
    assert not found.clustered, "no ring: other brokers lead or wait"
    assert broker_options({}).mode is None


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
def test_incompatible_options_are_refused(
    given: dict[str, str], at_fault: str, tmp_path: Path
) -> None:
    """One sentence names the option, and the directory is not created."""
    with pytest.raises(OptionError) as refused:
        broker_options({"shared-store": str(tmp_path / "store"), **given})
    assert refused.value.option == at_fault
    assert not (tmp_path / "store").exists()


def test_a_lease_needs_a_store() -> None:
    with pytest.raises(OptionError, match="it needs --shared-store"):
        broker_options({"shared-store-lease": "900"})


def test_where_the_lease_is_kept(tmp_path: Path) -> None:
    def lock(url: str) -> DatabaseLock | None:
        found = broker_options({"shared-store": str(tmp_path), "shared-store-lock": url})
        assert isinstance(found.mode, SharedStoreOptions)
        return found.mode.lock

    assert lock("") is None
    url = "postgresql://qpidd:geheim@db/lease?passfile=/etc/pgpass&sslmode=verify-full"
    shown = "postgresql://qpidd:***@db/lease?passfile=/etc/pgpass&sslmode=verify-full"
    assert lock(url) == DatabaseLock(url, shown)
    at = "postgresql://db:5432/lease?application_name=a@b"
    found = lock(at)
    assert found is not None
    assert found.url == at, "an @ has no meaning after the ?"
    assert lock("sqlite:///srv/x%20y.db") == DatabaseLock(
        "sqlite:///srv/x%20y.db", "sqlite:///srv/x%20y.db", Path("/srv/x y.db")
    )


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://u:geheim@db/lease", "begins neither with postgresql:// nor with sqlite:///"),
        ("sqlite://lease.db", "is not of the form sqlite:///DIR/FILE"),
        ("sqlite:///", "is not of the form sqlite:///DIR/FILE"),
        ("postgresql://u:geheim@db/lease?targe=x", "targe"),
        ("postgresql://db/lease?targe=x&password=geheim", "targe"),
        ("postgresql://db/lease?passw%6frd=geheim&x=geheim", "invalid URI query parameter"),
        ("postgresql://u:gehe/geheim@db/lease", "in a user or a password write %40 for @, %2F for"),
        ("postgresql://u:gehe@geheim@db/lease", "in a user or a password write %40 for @, %2F for"),
        ("postgresql://u:gehe?a@geheim@db/x", "in a user or a password write %40 for @, %2F for"),
        ("postgresql://u:geheim%zz@db/lease", "invalid percent-encoded token"),
        ("postgresql://u:geheim geheim@db/lease", "unexpected spaces found"),
    ],
)
def test_an_invalid_lock_is_refused(url: str, sentence: str, tmp_path: Path) -> None:
    """The error names it without its password."""
    with pytest.raises(OptionError, match=sentence) as refused:
        broker_options({"shared-store": str(tmp_path), "shared-store-lock": url})
    assert refused.value.option == "shared-store-lock"
    assert "geheim" not in refused.value.reason


def test_a_lock_without_its_driver_or_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="it needs --shared-store"):
        broker_options({"shared-store-lock": "sqlite:///x/y"})
    monkeypatch.setattr("broker.options.modes.shared_store.find_spec", lambda _: None)
    with pytest.raises(OptionError, match=r"pip install 'qpid-cluster-py\[postgresql\]'"):
        broker_options({"shared-store": "/srv/x", "shared-store-lock": "postgresql://h/d"})


def test_a_driver_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg without libpq: the module exists, and its import fails."""
    monkeypatch.setitem(sys.modules, "psycopg.conninfo", None)
    with pytest.raises(OptionError, match=r"cannot be loaded.*pip install"):
        broker_options({"shared-store": "/srv/x", "shared-store-lock": "postgresql://h/d"})
