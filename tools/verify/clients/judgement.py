# mypy: disable-error-code="import-untyped"
"""Combines the rules about messages that clients published and received, by body.

A finding has a promise, a client's operation that shows it, and a scope. A finding with a scope
counts only `within` the part of the client's publishes that the members' logs surely hold, or the
deliveries that it `held`, or on a connection that surely `routed` a publish to a queue; one without
a scope always counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tools.verify.clients.accounts import ACCOUNTS
from tools.verify.clients.evidence import SCHEMAS, HistoryExtent
from tools.verify.clients.lives import BY_CONTENT, BY_PLACE, LIVES_SCHEMAS
from tools.verify.clients.published import ENTERED, PUBLISHED
from tools.verify.clients.received import RECEIVED
from tools.verify.sql.exchange import Exchange, Key, Step

FINDINGS_MAX = 20
SUSPECTS_MAX = 1000

_WHO = "client string, life bigint, session bigint"
RESULT_SCHEMAS = {
    "findings": f"promise string, scope string, {_WHO}, place bigint, body bigint, queue string, "
    "position bigint, what string",
    "suspects": f"{_WHO}, place bigint, until bigint, body bigint, queue string, plain bigint, "
    "again bigint, plain_there bigint, entered bigint",
    "spans": "name string, client string, life bigint, place bigint, until bigint",
    "routed": _WHO,
    "outcomes": "name string, n bigint",
    # All bins together
    "accusations": f"promise string, {_WHO}, body bigint, queue string, position bigint, "
    "what string",
    "faults": SCHEMAS["damage"],
    "counts": "client string, life bigint, op bigint, n bigint",
    "account": "name string, n bigint",
    "older": "name string",
}
RESULT_SCHEMAS["doubtful"] = RESULT_SCHEMAS["suspects"] + ", judged boolean"

# Ordinary bodies are removed before the rules, because they break none: published once, with a
# number, confirmed, and received unflagged from the queue that its client named, by a connection
# that was not lost; at the members one message that entered one queue, was delivered once, and
# acknowledged. Such a body has these seven rows, a bit for each, and they agree.
_ORDINARY = {
    "labels": """
        SELECT name, MIN(queue) AS label FROM names
        WHERE name NOT LIKE 'amq.delayed.%' GROUP BY name""",
    "ordinary": """
        SELECT body FROM (
            SELECT body, CASE WHEN label IS NULL THEN 0 WHEN op = 1 THEN 1 WHEN op = 2 THEN 2
                WHEN op = 5 AND NOT flag AND broke IS NULL THEN 4 ELSE 0 END AS bit,
                CASE WHEN op < 5 THEN number END AS number, label, CAST(NULL AS BIGINT) AS queue
            FROM operations LEFT JOIN labels ON name = operations.queue
            LEFT JOIN (SELECT DISTINCT client, life, session, TRUE AS broke FROM lost) AS ended
                USING (client, life, session)
            UNION ALL
            SELECT body, CASE WHEN cause = 0 AND message > 0 AND number > 0
                    AND (answered OR NOT confirms) THEN 8 ELSE 0 END, number, NULL, NULL
            FROM published CROSS JOIN extent
            UNION ALL
            SELECT body, CASE WHEN label IS NULL OR repeat THEN 0 ELSE 16 END, NULL, label, queue
            FROM entered LEFT JOIN names USING (queue) LEFT JOIN labels USING (name)
            UNION ALL
            SELECT body, CASE WHEN label IS NOT NULL AND plain = 1 AND again = 0 AND reads = 0
                    THEN 32 ELSE 0 END, NULL, label, NULL
            FROM deliveries LEFT JOIN labels USING (name)
            UNION ALL
            SELECT body, CASE WHEN ends = 1 AND end_op = 4 AND end_cause NOT IN (2, 6) THEN 64
                    ELSE 0 END, NULL, NULL, queue
            FROM lives
        ) AS seven
        GROUP BY body HAVING COUNT(*) = 7 AND BIT_OR(bit) = 127 AND MIN(number) = MAX(number)
            AND MIN(label) = MAX(label) AND MIN(queue) = MAX(queue)""",
    "of_ordinary": "SELECT operations.* FROM operations SEMI JOIN ordinary USING (body)",
    "ops": """
        SELECT *, ROW_NUMBER() OVER (ORDER BY client, life, place) AS nth
        FROM operations ANTI JOIN ordinary USING (body)""",
}
_RESULTS = {
    "findings": """
        SELECT promise, scope, client, life, session, place, broken.body, broken.queue, position,
            what
        FROM (
            SELECT * FROM of_answers
            UNION ALL SELECT * FROM of_returns
            UNION ALL SELECT * FROM of_ends
            UNION ALL SELECT * FROM of_acks
            UNION ALL SELECT * FROM of_rejects
        ) AS broken JOIN ops ON nth = who""",
    "spans": """
        SELECT name, client, life, MIN(place) AS place, MAX(place) AS until
        FROM (
            SELECT 'publish' AS name, client, life, place FROM sure_publishes JOIN ops ON nth = who
            UNION ALL SELECT 'receipt', client, life, place FROM sure_receipts JOIN ops ON nth = who
            UNION ALL SELECT CASE op WHEN 2 THEN 'publish' ELSE 'receipt' END, client, life, place
            FROM of_ordinary WHERE op IN (2, 5)
        ) AS sure GROUP BY name, client, life""",
    "routed": """
        SELECT client, life, session FROM sure_publishes JOIN ops ON nth = who WHERE routed
        UNION SELECT client, life, session FROM of_ordinary WHERE op = 2""",
}
BY_BODY = _ORDINARY | ENTERED | PUBLISHED | RECEIVED | ACCOUNTS | _RESULTS

# If the logs begin late or may end early, a client's operations count between the first and the
# last one that is surely found.
TOGETHER = {
    "sure": """
        SELECT client, life, name, MIN(place) AS since, MAX(until) AS till
        FROM spans GROUP BY client, life, name""",
    "accusations": """
        SELECT promise, client, life, session, body, queue, position, what
        FROM (
            SELECT findings.*, ROW_NUMBER() OVER (
                PARTITION BY promise ORDER BY client, place, what) AS rank
            FROM findings
            LEFT JOIN (SELECT * FROM sure WHERE name = 'publish') AS sure USING (client, life)
            LEFT JOIN (
                SELECT client, life, till AS held_till FROM sure WHERE name = 'receipt'
            ) AS held USING (client, life)
            LEFT JOIN (SELECT DISTINCT client, life, session, TRUE AS reached FROM routed) AS ways
                USING (client, life, session)
            CROSS JOIN extent
            WHERE scope IS NULL OR scope = 'routed' AND reached
                OR scope = 'held' AND (to_end OR place < held_till)
                OR scope = 'within' AND (from_start OR place > since) AND (to_end OR place < till)
        ) AS ranked CROSS JOIN extent
        WHERE rank <= findings_max ORDER BY client, place, what""",
    "doubtful": """
        SELECT * FROM (
            SELECT suspects.*, (entered > 0 OR NOT lost_ends) AND BOOL_AND(COALESCE(
                    (from_start OR place > since) AND (to_end OR until < till), FALSE
                )) OVER (PARTITION BY body, queue) AS judged,
                ROW_NUMBER() OVER (PARTITION BY body, queue ORDER BY client, life) AS nth,
                DENSE_RANK() OVER (ORDER BY body, queue) AS rank
            FROM suspects
            LEFT JOIN (SELECT * FROM sure WHERE name = 'receipt') AS sure USING (client, life)
            CROSS JOIN extent
        ) AS ranked CROSS JOIN extent WHERE nth = 1 AND rank <= suspects_max""",
    "faults": """
        SELECT * FROM (
            SELECT client, life, what, ROW_NUMBER() OVER (ORDER BY client, life, what) AS rank
            FROM damage
        ) AS ranked CROSS JOIN extent WHERE rank <= findings_max""",
    "counts": """
        SELECT client, life, op, CAST(SUM(n) AS BIGINT) AS n
        FROM did GROUP BY client, life, op""",
    "account": "SELECT name, CAST(SUM(n) AS BIGINT) AS n FROM outcomes GROUP BY name",
    "older": "SELECT DISTINCT name FROM unknown",
}

_WANTED = {
    "wanted_deliveries": "SELECT deliveries.* FROM deliveries SEMI JOIN suspects USING (body)",
}
_SCHEMAS = SCHEMAS | LIVES_SCHEMAS | RESULT_SCHEMAS
_SCHEMAS["wanted_deliveries"] = LIVES_SCHEMAS["deliveries"]


def exchange_of_clients(names: pa.Table, extent: HistoryExtent, bins: int) -> Exchange:
    """Return the steps of the check: by place in a queue, by content, by body, and together."""
    by_body: dict[str, Key] = dict.fromkeys(
        ("published", "entered", "lives", "deliveries", "operations", "acks"), ("body",)
    )
    together: dict[str, Key] = dict.fromkeys(
        (*_RESULTS, "suspects", "outcomes", "did", "damage", "unknown"), ()
    )
    bounds = {"findings_max": FINDINGS_MAX, "suspects_max": SUSPECTS_MAX}
    given = {"names": names, "extent": pa.Table.from_pylist([extent._asdict() | bounds])}
    return Exchange(
        _SCHEMAS,
        [
            *_steps_of_moves(names),
            Step(
                by_body | {"queue_moves": None, "lost": None}, BY_BODY,
                [*_RESULTS, "suspects", "outcomes"], given,
            ),
            Step(
                together, TOGETHER,
                ["accusations", "doubtful", "faults", "counts", "account", "older"], given,
            ),
        ],
        bins,
    )  # fmt: skip


def exchange_of_deliveries(names: pa.Table, suspects: pa.Table, bins: int) -> Exchange:
    """Return the steps that look up how often oddly received messages were delivered."""
    look_up = Step({"deliveries": ()}, _WANTED, ["wanted_deliveries"], {"suspects": suspects})
    return Exchange(_SCHEMAS, [*_steps_of_moves(names), look_up], bins)


def _steps_of_moves(names: pa.Table) -> Sequence[Step]:
    by_place: dict[str, Key] = {
        "moves": ("queue", "seq"), "publishes": ("position",), "confirms": ("position",)
    }  # fmt: skip
    by_content: dict[str, Key] = dict.fromkeys(("entries", "places", "handed"), ("content",))
    return (
        Step(by_place, BY_PLACE, list(BY_PLACE), {}),
        Step(
            by_content, BY_CONTENT, ["entered", "deliveries", "unknown", "lives"], {"names": names}
        ),
    )
