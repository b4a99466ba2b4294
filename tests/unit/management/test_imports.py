"""The hint of an import about virtual hosts that no administrator may enter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.management.access import Identity
from broker.management.call import Broker
from broker.management.json_values import Object
from broker.management.resources.transfer import Import
from tests.support.gateway_loop import PERMISSIONS, Loop


def test_the_hint_names_the_command_that_grants_access(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    for name in ("shut", "open"):
        loop.define("vhost", "", name, {"description": "", "tags": ()})
    loop.define("user", "", "ada", Loop.hashed("x", "administrator"))
    loop.define("permission", "open", "ada", dict.fromkeys(PERMISSIONS, ".*"))
    broker = cast("Broker", SimpleNamespace(machine=loop.machine))
    by = Identity("ada", frozenset({"administrator"}), "127.0.0.1:1")
    document: Object = {"vhosts": [{"name": "shut"}, {"name": "open"}]}
    Import(broker, by, document)._hint()
    (record,) = caplog.records
    assert record.getMessage().endswith("qpidctl set_permissions -p shut ada '.*' '.*' '.*'")
