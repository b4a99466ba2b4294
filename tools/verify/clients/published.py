"""G8, G9, G20: each publish that was answered is a message, and was confirmed by a member.

A confirmed publish is in the canonical history, in the queue it was for, and a member recorded its
confirm (which disks that needs is G9 over the members' own CONFIRMs). It may have reached no queue
if its client was told so, or if there was no such queue. A refused or returned publish is in no
queue. A publish that a queue recognised by its key counts as in it: a move says so, and names the
message it stands for.

Clients and members identify a publish by its body and number, and many may have the same ones, so
counts are compared. Publishes have causes: 0 of a client; 1 of a transaction; 2 dead-lettered; 3
repeated: its number was used before, and it stands for that message; 4 delayed: the message of that
number waited in a queue named after its exchange.
"""

from __future__ import annotations


def times(count: str) -> str:
    """Return the expression for how often, for people."""
    return (
        f"CASE {count} WHEN 0 THEN 'never' WHEN 1 THEN 'once' WHEN 2 THEN 'twice' "
        f"ELSE CONCAT({count}, ' times') END"
    )


# The queues that each publish entered; for a repeated one, those that its message entered.
ENTERED = {
    "posts": """
        SELECT *, ROW_NUMBER() OVER (ORDER BY position, epoch, low) AS post
        FROM published ANTI JOIN ordinary USING (body)""",
    "own": """
        SELECT post, queue, content, posts.body, repeat
        FROM posts JOIN entered USING (epoch, position, low)""",
    "dues": """
        SELECT due.post, begun.post AS begun, due.message > 0 AS routed
        FROM posts AS due JOIN posts AS begun
            ON begun.low = due.number AND begun.body = due.body AND begun.post < due.post
        WHERE due.cause IN (4, 5) AND begun.cause <> 3 AND begun.message > 0""",
    "reached": """
        SELECT COALESCE(begun, post) AS post, queue, content, body, repeat
        FROM own LEFT JOIN dues USING (post)""",
    "through": """
        SELECT * FROM reached
        UNION ALL
        SELECT again.post, reached.queue, reached.content, again.body, reached.repeat
        FROM posts AS again
        JOIN posts AS begun ON begun.low = again.low AND begun.body = again.body
        JOIN reached ON reached.post = begun.post
        WHERE again.cause = 3 AND begun.cause = 0""",
    # A delayed message may be for any queue: a full queue may have refused it when it was due.
    "arrivals": """
        SELECT through.post, queue, content, body, repeat,
            CASE WHEN names.name NOT LIKE 'amq.delayed.%' THEN names.name END AS name,
            names.name IS NULL AS nameless
        FROM through LEFT JOIN names USING (queue)""",
    # Only publishes whose clients want a confirm. `older`: a repeated publish may have entered a
    # queue at a position that is in no log.
    "wanted": """
        SELECT posts.*, LEAST(position, 8796093022207) * 1048576 AS time,
            COALESCE(queues, 0) AS queues, message = 0 AS nowhere,
            cause = 3 AND message > 0 AND queues IS NULL AND NOT (from_start AND complete) AS older
        FROM posts
        LEFT JOIN (
            SELECT post, COUNT(DISTINCT queue) AS queues FROM arrivals GROUP BY post
        ) USING (post)
        CROSS JOIN extent
        WHERE cause IN (0, 3) AND number > 0""",
}

PUBLISHED = {
    "told": """
        SELECT body, number, queue, COUNT(*) FILTER (WHERE op = 1) AS attempts,
            COUNT(*) FILTER (WHERE op = 2) AS confirmed, COUNT(*) FILTER (WHERE op = 3) AS refused,
            MIN(nth) FILTER (WHERE op IN (2, 3)) AS who
        FROM ops WHERE op IN (1, 2, 3)
        GROUP BY body, number, queue HAVING COUNT(*) FILTER (WHERE op IN (2, 3)) > 0""",
    # When a queue of a name existed, if each name is known to belong to one queue.
    "changes": """
        SELECT name, time AS since, op = 8 AS there,
            LEAD(time) OVER (PARTITION BY name ORDER BY time, op) AS until
        FROM queue_moves JOIN names USING (queue) CROSS JOIN extent
        WHERE routes AND (op = 8 OR op = 7 AND cause = 1)""",
    # `astray`: it reached no queue, and the one that its client named existed.
    "found": """
        SELECT told.body, told.number, told.queue, COUNT(*) AS there,
            COUNT(*) FILTER (WHERE nowhere) AS nowhere,
            COUNT(*) FILTER (WHERE nowhere AND changes.name <> '') AS astray,
            COUNT(*) FILTER (WHERE nowhere OR older OR queues > 0) AS entered,
            COUNT(*) FILTER (WHERE older) AS older, COUNT(*) FILTER (WHERE answered) AS answered,
            MIN(channel) = MAX(channel) AS by_one, MIN(position) AS position
        FROM told JOIN wanted USING (body, number)
        LEFT JOIN changes ON changes.name = told.queue AND changes.there AND time > since
            AND (until IS NULL OR until >= time)
        GROUP BY told.body, told.number, told.queue""",
    "inside": """
        SELECT told.body, told.number, told.queue, COUNT(DISTINCT post) AS inside
        FROM told JOIN wanted USING (body, number) JOIN arrivals USING (post)
        WHERE arrivals.name IS NULL OR arrivals.name = told.queue
        GROUP BY told.body, told.number, told.queue""",
    # A publish that reached no queue is excused by its own return, or because there was no such
    # queue; a repeated one, because the queues that it entered at first are unknown.
    "answers": """
        SELECT told.*, position, COALESCE(there, 0) AS there, COALESCE(entered, 0) AS entered,
            COALESCE(nowhere, 0) AS nowhere, COALESCE(inside, 0) AS inside,
            COALESCE(nowhere, 0) + COALESCE(older, 0) - GREATEST(
                COALESCE(astray, 0) - COALESCE(returned, 0) - COALESCE(unnumbered, 0), 0
            ) AS excused,
            COALESCE(answered, 0) AS answered, by_one
        FROM told
        LEFT JOIN found USING (body, number, queue)
        LEFT JOIN inside USING (body, number, queue)
        LEFT JOIN (
            SELECT body, number, COUNT(*) AS returned FROM ops WHERE op = 4 GROUP BY body, number
        ) USING (body, number)
        LEFT JOIN (
            SELECT body, COUNT(*) AS unnumbered FROM ops WHERE op = 4 AND number = 0 GROUP BY body
        ) USING (body)""",
    # If publishes became several messages by one channel, one is this client's, so all are.
    "verdicts": """
        SELECT answers.*, complete, CASE
            WHEN confirmed + refused > there THEN 'missing'
            WHEN confirmed > entered THEN 'nowhere'
            WHEN queue <> '' AND confirmed > inside + excused THEN 'elsewhere'
            WHEN refused > there - nowhere - inside THEN 'not refused'
            WHEN attempts = 1 AND confirmed = 1 AND there > 1 AND by_one THEN 'doubled'
            WHEN confirms AND confirmed > answered THEN 'not confirmed'
            END AS verdict
        FROM answers CROSS JOIN extent""",
    # If all queues are of one virtual host, a client that reached none may be in another one.
    "of_answers": f"""
        SELECT CASE verdict
                WHEN 'missing' THEN 'G8' WHEN 'nowhere' THEN 'G8' WHEN 'elsewhere' THEN 'G8'
                WHEN 'not confirmed' THEN 'G9' ELSE 'G20'
            END AS promise,
            CASE WHEN verdict = 'missing' THEN 'within'
                WHEN verdict = 'elsewhere' AND confirmed <= inside + nowhere THEN 'routed'
            END AS scope,
            who, body, queue, position,
            CASE verdict
                WHEN 'missing' THEN CONCAT(
                    'was answered for its publish ', number, ' (', confirmed, ' confirmed',
                    CASE WHEN refused > 0 THEN CONCAT(', ', refused, ' refused') ELSE '' END,
                    ', counting all clients), but the members'' logs have it ', {times("there")})
                ELSE CONCAT('its publish ', number, CASE verdict
                    WHEN 'nowhere' THEN ' was confirmed, but entered no queue'
                    WHEN 'elsewhere' THEN CONCAT(' was confirmed, but did not enter ', queue)
                    WHEN 'not refused' THEN CONCAT(' was refused, but it ',
                        CASE WHEN nowhere > 0 THEN 'reached no queue' ELSE
                            CONCAT('entered ', queue) END)
                    WHEN 'doubled' THEN CONCAT(' was sent once, but became ', there, ' messages')
                    ELSE ' was confirmed, but no member recorded that it confirmed it' END)
            END AS what
        FROM verdicts WHERE verdict IS NOT NULL AND (complete OR verdict <> 'missing')""",
    "of_returns": f"""
        SELECT 'G20' AS promise, CAST(NULL AS STRING) AS scope, who, body, '' AS queue, position,
            CONCAT('was told ', {times("returned")}, ' that it is unroutable, but ',
                COALESCE(nowhere, 0), ' of ', COALESCE(there, 0),
                ' publishes of it reached no queue') AS what
        FROM (
            SELECT body, COUNT(*) AS returned, MIN(nth) AS who FROM ops WHERE op = 4 GROUP BY body
        ) LEFT JOIN (
            SELECT body, COUNT(*) AS there, COUNT(*) FILTER (WHERE message = 0) AS nowhere,
                MIN(position) AS position
            FROM posts WHERE cause NOT IN (2, 4) GROUP BY body
        ) USING (body) CROSS JOIN extent
        WHERE from_start AND complete AND returned > COALESCE(nowhere, 0)
            AND (to_end OR COALESCE(there, 0) >= returned)""",
    # Publishes that are surely found, and whether they reached a queue: they show the extent of the
    # members' logs, and that a connection is in the virtual host of their queues.
    "sure_publishes": """
        SELECT who, nowhere = 0 AS routed FROM verdicts
        WHERE verdict IS NULL AND attempts = 1 AND confirmed = 1 AND there = 1""",
}
