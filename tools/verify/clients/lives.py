"""The fate of each message in each queue, joined by place in the queue and by content.

A message in a queue is identified by the hash of its content, which stays when a cold start
renumbers the queue. Not all moves have it, so places are looked at first.
"""

from __future__ import annotations

from tools.verify.clients.evidence import SCHEMAS

LIVES_SCHEMAS = {
    "published": SCHEMAS["publishes"] + ", answered boolean",
    "entered": SCHEMAS["entries"],
    "handed": "queue bigint, content bigint, plain bigint, again bigint, reads bigint, "
    "position bigint",
    "places": "queue bigint, content bigint, ends bigint, end_time bigint, end_position bigint, "
    "end_op bigint, end_cause bigint, acks bigint, rejects bigint, last_time bigint, "
    "last_position bigint, last_op bigint, persistent boolean",
    "deliveries": "name string, body bigint, plain bigint, again bigint, reads bigint, "
    "position bigint",
    "unknown": "name string, n bigint",
}
LIVES_SCHEMAS["lives"] = LIVES_SCHEMAS["places"] + ", body bigint"

# The publishes that a member recorded as confirmed, or may have confirmed; how often each content
# was delivered, without and with the flag (a delivery that several members logged counts once; a
# message read in a stream is named by its place only); and how the message at each place
# ended (`acks`: how often it was acknowledged).
BY_PLACE = {
    "published": """
        SELECT publishes.*, told.position IS NOT NULL AS answered
        FROM publishes LEFT JOIN (SELECT DISTINCT position FROM confirms) AS told
            USING (position)""",
    "handed": """
        SELECT queue, detail AS content, COUNT(*) FILTER (WHERE NOT flag) AS plain,
            COUNT(*) FILTER (WHERE flag) AS again, COUNT(*) FILTER (WHERE op = 12) AS reads,
            MIN(position) AS position
        FROM (
            SELECT DISTINCT time, position, flag, queue, seq, op,
                CASE op WHEN 3 THEN detail ELSE entered END AS detail
            FROM moves LEFT JOIN (
                SELECT queue, seq, MAX(detail) AS entered FROM moves WHERE op = 2
                GROUP BY queue, seq
            ) AS there USING (queue, seq)
            WHERE op IN (3, 12)
        ) AS sent GROUP BY queue, detail""",
    "places": """
        SELECT queue, MAX_BY(detail, time) FILTER (WHERE op <> 4) AS content,
            COUNT(*) FILTER (WHERE op IN (4, 6)) AS ends,
            MAX(time) FILTER (WHERE op IN (4, 6)) AS end_time,
            MAX(position) FILTER (WHERE op IN (4, 6)) AS end_position,
            MAX_BY(op, time) FILTER (WHERE op IN (4, 6)) AS end_op,
            MAX_BY(cause, time) FILTER (WHERE op IN (4, 6)) AS end_cause,
            COUNT(*) FILTER (WHERE op = 4 AND cause = 0) AS acks,
            COUNT(*) FILTER (WHERE op = 4 AND cause = 2) AS rejects,
            MAX(time) AS last_time, MAX(position) AS last_position, MAX_BY(op, time) AS last_op,
            BOOL_OR(op = 2 AND flag) AS persistent
        FROM moves WHERE op <> 12 GROUP BY queue, seq HAVING COUNT(*) FILTER (WHERE op <> 4) > 0""",
}

# The same with the body that a publish gave the content; `unknown`: older than the logs.
BY_CONTENT = {
    "entered": "SELECT * FROM entries WHERE body IS NOT NULL",
    "contents": "SELECT DISTINCT content, body FROM entries WHERE body IS NOT NULL",
    "named": """
        SELECT name, body, plain, again, reads, position
        FROM handed LEFT JOIN contents USING (content) LEFT JOIN names USING (queue)""",
    "deliveries": """
        SELECT name, body, CAST(SUM(plain) AS BIGINT) AS plain,
            CAST(SUM(again) AS BIGINT) AS again, CAST(SUM(reads) AS BIGINT) AS reads,
            MIN(position) AS position
        FROM named WHERE body IS NOT NULL GROUP BY name, body""",
    "unknown": """
        SELECT name, CAST(SUM(plain + again) AS BIGINT) AS n
        FROM named WHERE body IS NULL GROUP BY name""",
    "lives": """
        SELECT queue, content, CAST(SUM(ends) AS BIGINT) AS ends, MAX(end_time) AS end_time,
            MAX(end_position) AS end_position, MAX_BY(end_op, end_time) AS end_op,
            MAX_BY(end_cause, end_time) AS end_cause, CAST(SUM(acks) AS BIGINT) AS acks,
            CAST(SUM(rejects) AS BIGINT) AS rejects, MAX(last_time) AS last_time,
            MAX(last_position) AS last_position, MAX_BY(last_op, last_time) AS last_op,
            BOOL_OR(persistent) AS persistent, body
        FROM places JOIN contents USING (content) GROUP BY queue, content, body""",
}
