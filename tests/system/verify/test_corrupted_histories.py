"""Generated corruptions of each operation in a client's history: which are found, and which cannot
be.

docs/reference/memberlog-blind-spots.md lists the latter with the reason; all others must be found,
and those in the list must not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from broker.memberlog.client_history import Session
from broker.memberlog.records import CLIENT_ROW, REDELIVERED, ClientOp
from tests.system.verify.support.client_fixture import ClientPair, check_all
from tests.system.verify.support.make_client_histories import Clients, Servers
from tools.verify.clients import judgement

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

DOC = Path(__file__).parents[3] / "docs" / "reference" / "memberlog-blind-spots.md"
Operation = tuple[int, int, int]
Operator = Callable[[Operation], list[Operation]]
OPERATORS: dict[str, Operator] = {
    "another body": lambda operation: [(operation[0], operation[1] ^ 1, operation[2])],
    "number +1": lambda operation: [(operation[0], operation[1], operation[2] + 1)],
    "flag negated": lambda operation: [(operation[0] ^ REDELIVERED, operation[1], operation[2])],
    "dropped": lambda _: [],
    "duplicated": lambda operation: [operation, operation],
}
SURVIVORS = {
    *(f"{did} {operator}" for did in ("PUBLISHED", "ACKED", "LOST") for operator in OPERATORS),
    *(f"{did} dropped" for did in ("CONFIRMED", "REFUSED", "RECEIVED")),
    "RECEIVED number +1",
} - {
    *(f"{did} flag negated" for did in ("PUBLISHED", "ACKED", "LOST")),
    *(f"ACKED {operator}" for operator in ("dropped", "another body")),
}


def truth(pair: ClientPair) -> None:
    """One operation of each kind."""
    pair.writer.published(8, pair.body("full"))
    pair.servers.publish(pair.body("full"), 8)
    pair.servers.rows[-1] = pair.servers.rows[-1]._replace(seq=10_000 + pair.queue)
    pair.writer.refused(8)
    pair.publish("astray")
    pair.writer.unroutable(pair.body("astray"), 1)
    pair.send_twice("twice")
    pair.reader.lost()


def change_first(session: Session, did: ClientOp, operator: Operator) -> bool:
    """Change the first operation of this kind in the session; False if there is none."""
    operations = list(CLIENT_ROW.iter_unpack(bytes(session.ops)))
    for place, operation in enumerate(operations):
        if operation[0] & ~REDELIVERED == did:
            operations[place : place + 1] = operator(operation)
            session.ops[:] = b"".join(CLIENT_ROW.pack(*row) for row in operations)
            return True
    return False


def corruptions() -> Iterator[tuple[str, ClientOp, Operator]]:
    """Yield every corruption; the flag has a meaning in RECEIVED only."""
    for did in ClientOp:
        for name, operator in OPERATORS.items():
            if name != "flag negated" or did is ClientOp.RECEIVED:
                yield f"{did.name} {name}", did, operator


@cache
def found() -> frozenset[str]:
    """Return the corruptions that are found when one history has all of them, each with its own
    pair of clients.
    """
    servers, clients = Servers(), Clients()
    truth(ClientPair("the truth", servers, clients))
    for key, did, operator in corruptions():
        pair = ClientPair(key, servers, clients)
        truth(pair)
        assert change_first(pair.writer, did, operator) or change_first(
            pair.reader, did, operator
        ), key
    pair = ClientPair("CONFIRMED another queue", servers, clients)
    truth(pair)
    pair.writer.queue = "the truth"
    pair = ClientPair("RECEIVED another queue", servers, clients)
    truth(pair)
    pair.reader.queue = "the truth"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judgement, "FINDINGS_MAX", 1000)
        findings = check_all(servers, clients).findings
    keys = [
        *(key for key, _, _ in corruptions()),
        *(f"{did} another queue" for did in ("CONFIRMED", "RECEIVED")),
    ]
    named = {key for key in keys for one in findings if f" of {key} (" in one.what}
    assert all(any(f" of {key} (" in one.what for key in keys) for one in findings), findings
    return frozenset(named)


def test_each_corruption_is_found_or_listed_as_invisible() -> None:
    """G8, G11, G20."""
    every = {key for key, _, _ in corruptions()}
    assert every - found() == SURVIVORS
    assert {"CONFIRMED another queue", "RECEIVED another queue"} <= found()
    assert len(found()) >= 12


def test_the_survivors_are_documented() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert [key for key in sorted(SURVIVORS) if f"`{key}`" not in text] == []
