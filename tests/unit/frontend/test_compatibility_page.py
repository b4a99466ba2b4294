"""docs/COMPATIBILITY.md names everything that the code knows, and only announced capabilities."""

from pathlib import Path

import pytest

from broker.amqp.handshake import CAPABILITIES
from broker.amqp.spec import METHODS
from broker.machine.policies import qpid_options
from broker.machine.requests import arguments

PAGE = Path(__file__).resolve().parents[3] / "docs" / "COMPATIBILITY.md"


def rows(title: str) -> dict[str, str]:
    """The first column of the table under this title, and the rest of each row."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line.split("|", 2)[2] for line in lines}


def test_every_client_method_is_listed_once() -> None:
    assert sorted(rows("Methods")) == sorted(
        name for name, method in METHODS.items() if method.by_client
    )


def test_the_listed_capabilities_are_those_of_the_server() -> None:
    said = rows("Capabilities that the server announces")
    assert {name: "false" not in text for name, text in said.items()} == CAPABILITIES


@pytest.mark.parametrize("name", ["_NUMBERS", "_NAMES", "_HINTS", "_OF_STREAMS", "_COMPARED"])
def test_arguments_of_queues_are_listed(name: str) -> None:
    known = set(getattr(arguments, name)) - set(qpid_options.NAMES)  # listed separately
    said = rows("Arguments of queues")
    assert known <= set(said)
    if name in {"_OF_STREAMS", "_HINTS"}:
        word = "406" if name == "_OF_STREAMS" else "changes nothing"
        assert [one for one in sorted(known) if word not in said[one]] == []


def test_qpid_options_are_listed_once() -> None:
    page = PAGE.read_text(encoding="utf-8").split("\n## Arguments of queues by Qpid's names\n")[1]
    table = [line.split("|") for line in page.split("\n## ")[0].splitlines() if "| `" in line]
    said = [(name, what) for _, names, what, *_ in table for name in names.split("`")[1::2]]
    assert sorted(name for name, _ in said) == sorted(qpid_options.NAMES)
    for name, what in said:
        assert qpid_options.HINTS.count(name) == what.count("change nothing"), name
        assert (name in qpid_options.REFUSED) == (what.startswith(" refused, 406")), name


def test_arguments_of_consumers_are_listed() -> None:
    said = rows("Arguments of exchanges, bindings and consumers")
    for name in arguments._CONSUME_STREAMS:
        assert "honoured" in said[name]
        assert "of other queues" in said[name]
