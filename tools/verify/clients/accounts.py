"""G20: each confirmed message has one end in each queue; also counts the ends, for people.

If publishes have the same body and number, as many of them count as were confirmed, in the order in
which they entered a queue.
"""

from __future__ import annotations

from typing import NamedTuple

END_STATES = (
    "settled", "dropped", "replaced", "dead-lettered", "purged", "still there", "unroutable",
    "repeats",
)  # fmt: skip


class PublishOutcomes(NamedTuple):
    """How many publishes were confirmed, and how their copies in queues have ended."""

    told: int  # confirmed, according to clients
    confirmed: int  # the part of them found in the logs
    ends: dict[str, int]  # by END_STATES; one publish may have entered several queues

    def __str__(self) -> str:
        listed = [f"{count:,} {end}" for end, count in self.ends.items() if count]
        missing = self.told - self.confirmed
        found = f"{missing:,} NOT accounted for" if missing else "all accounted for"
        return f"{self.told:,} confirmed by clients, {found}: {', '.join(listed) or 'nothing'}"


ACCOUNTS = {
    "claims": """
        SELECT body, number, COUNT(*) AS confirmed, MIN(nth) AS who
        FROM ops WHERE op = 2 GROUP BY body, number""",
    "counted": """
        SELECT * FROM (
            SELECT post, body, nowhere, confirmed, who, ROW_NUMBER() OVER (
                PARTITION BY body, number ORDER BY queues = 0, position, post) AS place
            FROM wanted JOIN claims USING (body, number)
        ) AS found WHERE place <= confirmed""",
    # The last purge of each queue, the last cold start, and the last one that the queue survived.
    "purges": """
        SELECT queue, MAX(position) FILTER (WHERE op = 7 AND cause <> 2) AS purged,
            MAX(position) FILTER (WHERE op = 7 AND cause = 2) AS cold,
            MAX(position) FILTER (WHERE op = 9) AS recovered
        FROM queue_moves GROUP BY queue""",
    # A delayed message that was due, or a dead letter that waited, continues in the queues it then
    # reached. A purge takes ready messages: those not delivered since they were enqueued or
    # returned. Persistent messages survive a cold start if their queue does.
    "copies": """
        SELECT who, queue, body, ends, end_position, CASE
            WHEN repeat THEN 'repeats'
            WHEN end_op = 6 AND end_cause IN (2, 3) AND routed THEN 'passed on'
            WHEN end_op = 6 AND end_cause IN (2, 3) THEN 'unroutable'
            WHEN end_op = 6 AND end_cause = 4 OR end_op = 4 AND end_cause = 6 THEN 'replaced'
            WHEN ends > 0 AND dead AND (end_op = 6 OR end_cause = 2) THEN 'dead-lettered'
            WHEN ends > 0 AND end_op = 6 THEN 'dropped'
            WHEN ends > 0 THEN 'settled'
            WHEN last_op IN (2, 5) AND purged >= last_position THEN 'purged'
            WHEN cold >= last_position AND NOT (persistent AND COALESCE(recovered, -1) >= cold)
                THEN 'purged'
            ELSE 'still there' END AS state
        FROM counted
        JOIN (SELECT DISTINCT post, queue, content, repeat FROM arrivals) USING (post)
        LEFT JOIN lives USING (queue, content, body)
        LEFT JOIN (
            SELECT DISTINCT position AS end_position, body, TRUE AS dead FROM posts WHERE cause = 2
        ) USING (end_position, body)
        LEFT JOIN purges USING (queue)
        LEFT JOIN (
            SELECT begun AS post, BOOL_OR(routed) AS routed FROM dues GROUP BY begun
        ) AS due USING (post)""",
    "outcomes": """
        SELECT state AS name, COUNT(*) AS n FROM copies WHERE state <> 'passed on' GROUP BY state
        UNION ALL SELECT 'unroutable', COUNT(*) FROM counted WHERE nowhere
        UNION ALL SELECT 'found', COUNT(*) FROM counted
        UNION ALL SELECT 'settled', COUNT(*) FROM ordinary
        UNION ALL SELECT 'found', COUNT(*) FROM ordinary
        UNION ALL SELECT 'told', COUNT(*) FROM operations WHERE op = 2""",
    "of_ends": """
        SELECT 'G20' AS promise, CAST(NULL AS STRING) AS scope, who, body,
            COALESCE(name, '') AS queue, end_position AS position,
            CONCAT('a confirmed message ended ', ends, ' times in ', COALESCE(name, '')) AS what
        FROM copies LEFT JOIN names USING (queue) CROSS JOIN extent
        WHERE ends > 1 AND from_start AND complete""",
}
