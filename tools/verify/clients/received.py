"""G11, G20: messages that clients received were delivered, with the same redelivered flag.

They are compared with the canonical history first. Only mismatches are looked up in the logs of all
members, because a superseded history may have delivered before it ended. A client that names no
queue, and a queue whose name is damaged, may be any.
"""

from __future__ import annotations

from tools.verify.clients.published import times

# A message read in a stream stays there: it counts as if it had entered once for each reading.
RECEIVED = {
    "receipts": """
        SELECT body, queue, COUNT(*) FILTER (WHERE NOT flag) AS plain,
            COUNT(*) FILTER (WHERE flag) AS again, MIN(nth) AS who,
            MIN(client) = MAX(client) AND MIN(life) = MAX(life) AS alone
        FROM ops CROSS JOIN extent WHERE complete AND op = 5 GROUP BY body, queue""",
    "delivered": """
        SELECT receipts.body, receipts.queue, CAST(SUM(plain_there) AS BIGINT) AS plain_there,
            CAST(SUM(again_there) AS BIGINT) AS again_there,
            CAST(SUM(entered) AS BIGINT) AS entered, MIN(position) AS position
        FROM receipts JOIN (
            SELECT body, name, plain AS plain_there, again AS again_there, reads AS entered,
                position
            FROM deliveries
            UNION ALL
            SELECT body, name, 0, 0, COUNT(DISTINCT post), NULL
            FROM arrivals WHERE (name IS NOT NULL OR nameless) AND NOT repeat GROUP BY body, name
        ) AS theirs ON theirs.body = receipts.body
            AND (queue = '' OR name IS NULL OR name = queue)
        GROUP BY receipts.body, receipts.queue""",
    # Messages received more often than they were delivered so, or than they entered: for each
    # client, from its first receipt until its last.
    "suspects": """
        SELECT client, life, MIN_BY(session, place) AS session, MIN(place) AS place,
            MAX(place) AS until, body, queue, plain, again, plain_there, entered
        FROM ops JOIN (
            SELECT body, queue, plain, again, COALESCE(plain_there, 0) AS plain_there,
                COALESCE(entered, 0) AS entered
            FROM receipts LEFT JOIN delivered USING (body, queue)
            WHERE plain > COALESCE(plain_there, 0) OR again > COALESCE(again_there, 0)
                OR plain > COALESCE(entered, 0)
        ) AS odd USING (body, queue)
        WHERE op = 5
        GROUP BY body, queue, plain, again, plain_there, entered, client, life""",
    # How often the messages were handed to clients, and settled, and how often clients acked them.
    "settlements": """
        SELECT receipts.*, CAST(handed AS BIGINT) AS handed, CAST(settled AS BIGINT) AS settled,
            CAST(rejected AS BIGINT) AS rejected, settled_at,
            CAST(COALESCE(acked, 0) AS BIGINT) AS acked
        FROM receipts
        JOIN (
            SELECT body, name AS queue, SUM(plain + again) AS handed
            FROM deliveries GROUP BY body, name
        ) AS handed USING (body, queue)
        JOIN (
            SELECT body, name AS queue, SUM(acks) AS settled, SUM(rejects) AS rejected,
                MAX(end_position) AS settled_at
            FROM lives JOIN names USING (queue) GROUP BY body, name
        ) AS settled USING (body, queue)
        LEFT JOIN (
            SELECT body, queue, SUM(n) AS acked FROM acks GROUP BY body, queue
        ) AS acked USING (body, queue)""",
    # Messages settled as acknowledged more often than clients acked them, if all their receivers
    # keep histories, and lost the connections that had them: they should have come back.
    "of_acks": """
        SELECT 'G20' AS promise, 'held' AS scope, last AS who, body, queue, settled_at AS position,
            CONCAT('held it as its connection was lost, and acked it ',
                CASE acked WHEN 0 THEN 'never' ELSE CONCAT(acked, ' times') END,
                ' (counting all clients), but it was settled as acknowledged ', settled,
                CASE settled WHEN 1 THEN ' time' ELSE ' times' END) AS what
        FROM settlements
        JOIN (
            SELECT body, queue, MAX(nth) AS last FROM ops LEFT JOIN (
                SELECT client, life, session, TRUE AS broke FROM lost
            ) AS ended USING (client, life, session)
            WHERE op = 5 GROUP BY body, queue HAVING BOOL_AND(COALESCE(broke, FALSE))
        ) AS broken USING (body, queue)
        CROSS JOIN extent
        WHERE sole AND from_start AND (to_end OR alone) AND plain + again = handed
            AND settled > acked""",
    # Who acks a delivery does not reject it, so one of the two is not true.
    "of_rejects": f"""
        SELECT 'G20' AS promise, CAST(NULL AS STRING) AS scope, who, body, queue,
            settled_at AS position, CONCAT('acked it ', {times("acked")},
                ' (counting all clients), but it was delivered ', {times("handed")},
                ', and rejected ', {times("rejected")}) AS what
        FROM settlements CROSS JOIN extent
        WHERE sole AND from_start AND to_end AND rejected > 0 AND acked + rejected > handed""",
    # Messages received once, and delivered once.
    "sure_receipts": """
        SELECT who FROM receipts
        JOIN (SELECT body, SUM(plain + again) AS n FROM deliveries GROUP BY body) USING (body)
        WHERE n = 1 AND plain + again = 1""",
}


def _received(received: str, flag: str, how: str, there: str) -> str:
    return (
        f"CONCAT('received it ', {times(received)}, ' {flag} the redelivered flag (counting all "
        f"clients), but it {how} ', {times(there)})"
    )


# Against the deliveries in the logs of all members. The body of a message enqueued before the logs
# begin is unknown, so there are no findings about queues from which such messages were delivered.
RECEIVED_ANYWHERE = {
    "broken": """
        SELECT suspects.body, suspects.queue, client, life, session, suspects.plain AS plain,
            suspects.again AS again, entered,
            CAST(COALESCE(SUM(anywhere.plain), 0) AS BIGINT) AS plain_there,
            CAST(COALESCE(SUM(anywhere.again), 0) AS BIGINT) AS again_there,
            COALESCE(MIN(position), -1) AS position
        FROM suspects LEFT JOIN anywhere ON anywhere.body = suspects.body
            AND (queue = '' OR name IS NULL OR name = queue)
        WHERE judged
        GROUP BY suspects.body, suspects.queue, client, life, session, suspects.plain,
            suspects.again, entered, suspects.plain_there
        HAVING suspects.plain > COALESCE(SUM(anywhere.plain), 0)
            OR suspects.again > COALESCE(SUM(anywhere.again), 0)
            OR suspects.plain
                > entered + COALESCE(SUM(anywhere.plain), 0) - suspects.plain_there""",
    "accused": f"""
        SELECT CASE WHEN plain + again > plain_there + again_there
                AND plain_there + again_there = 0 THEN 'G20' ELSE 'G11' END AS promise,
            client, life, session, body, broken.queue, position, older.queue IS NOT NULL AS older,
            CASE WHEN plain + again > plain_there + again_there THEN CONCAT(
                'received it ', {times("(plain + again)")},
                ' (counting all clients), but it was delivered ',
                {times("(plain_there + again_there)")}, ', and entered ', {times("entered")})
            WHEN plain > plain_there
                THEN {_received("plain", "without", "was delivered so", "plain_there")}
            WHEN again > again_there
                THEN {_received("again", "with", "was delivered so", "again_there")}
            ELSE {_received("plain", "without", "entered", "entered")} END AS what
        FROM broken LEFT JOIN (
            SELECT DISTINCT body, queue FROM broken
            JOIN unknown ON queue = '' OR name IS NULL OR name = queue
        ) AS older USING (body, queue)
        ORDER BY body, broken.queue""",
}
