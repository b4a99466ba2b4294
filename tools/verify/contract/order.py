"""G12, G5, G29: messages leave a plain queue in the order of their places, and enter it in the
order in which their channel published them; a session's submissions are applied in order, each
once; the offsets sent to a stream's reader ascend.

The reference model judges redeliveries, and the order of a priority queue.
"""

from __future__ import annotations

from tools.verify.contract.rules import Rule

HIGH_WATERS = (
    "what string, who bigint, position bigint, first bigint, highest bigint, whole_from bigint"
)

# Moves: 1 PUBLISHED (cause 0: by a client; its number is in the column of queues), 3 DELIVERED, 6
# DROPPED (cause 4: replaced by a newer one, wherever it was), 11 READER, 12 READ. `stretch`: if the
# history takes it from this segment, the first of these positions. The high water of a queue never
# falls; that of a channel restarts with 1 when it is reopened. `whole_from`: where a hole before it
# matters, the position from which the history has none.
HIGHEST = {
    "leaving": """
        SELECT 'taken' AS what, stretch, queue AS who, seq AS value, nth, position, ordinal,
            queue, seq
        FROM logged WHERE op IN (3, 6) AND NOT flag AND max_priority NOT BETWEEN 0 AND 256
            AND max_priority <> 259
            AND NOT (op = 6 AND cause = 4) AND stretch >= 0""",
    "posting": """
        SELECT 'posted' AS what, stretch, of AS who, queue AS value, nth, position, ordinal,
            -1 AS queue, queue AS seq
        FROM logged WHERE op = 1 AND cause = 0 AND queue > 0 AND stretch >= 0""",
    # A reader, by its name; before the first message it is where it began.
    "reading": """
        SELECT 'read' AS what, stretch, detail AS who, CASE op WHEN 12 THEN seq ELSE seq - 1 END
            AS value, nth, position, ordinal, queue, seq
        FROM logged WHERE op IN (11, 12) AND stretch >= 0""",
    "rising": """
        SELECT * FROM leaving UNION ALL SELECT * FROM posting UNION ALL SELECT * FROM reading""",
    "high_waters": """
        SELECT what, who, MIN(position) AS position, MIN_BY(value, nth) AS first,
            CASE what WHEN 'posted' THEN MAX_BY(value, nth) ELSE MAX(value) END AS highest,
            0 AS whole_from
        FROM rising GROUP BY what, stretch, who""",
}
ORDER = HIGHEST | {
    "ordered": """
        SELECT *, LAG(value) OVER (PARTITION BY what, stretch, who ORDER BY nth) AS before
        FROM rising""",
    # A commit settles first, then publishes.
    "commits": """
        SELECT *, op IN (4, 5) AND cause IN (2, 4)
            AND LAG(op) OVER (PARTITION BY position ORDER BY nth) = 2 AS late
        FROM logged WHERE kind = 23 AND (op IN (4, 5) OR op = 2)""",
}

# Between one stretch of the history and the next.
ORDER_OF_STRETCHES = {
    "resumed": """
        SELECT what, position, 0 AS ordinal, CASE what WHEN 'taken' THEN who ELSE -1 END AS queue,
            first AS seq, first AS value, who,
            CASE WHEN what IN ('posted', 'submitted')
            THEN LAG(highest) OVER (PARTITION BY what, who, whole_from ORDER BY position)
            ELSE MAX(highest) OVER (
                PARTITION BY what, who ORDER BY position
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) END AS before
        FROM high_waters""",
}

# `run`: positions without a gap after one state; of these the history takes `stretches` from here.
SUBMISSIONS = {
    "submitted": """
        SELECT *, 0 AS ordinal, -1 AS queue, -1 AS seq,
            LAG(blob) OVER (PARTITION BY run, session ORDER BY position) AS blob_before,
            FIRST_VALUE(origin) OVER (PARTITION BY run, session ORDER BY position) AS owner
        FROM submissions""",
    "taken": """
        SELECT session, position, blob, begins, whole_from
        FROM submissions JOIN stretches USING (run) WHERE position BETWEEN begins AND ends""",
    # A session is numbered by the position at which it begins, times 256.
    "high_waters": """
        SELECT 'submitted' AS what, session AS who, MIN(position) AS position,
            MIN_BY(blob, position) AS first, MAX_BY(blob, position) AS highest, whole_from
        FROM taken GROUP BY session, begins, whole_from
        UNION ALL SELECT DISTINCT 'submitted', session, session >> 8, CAST(NULL AS BIGINT), 0,
            whole_from
        FROM taken WHERE (session >> 8) >= whole_from""",
}

_OF_STRETCHES = {
    "overtaken": Rule("G12", "left the queue for the first time before an older one",
        "ordered", "what = 'taken' AND value <= before"),
    "publisher order": Rule("G12", "entered behind a message that its channel published later",
        "ordered", "what = 'posted' AND value <= before AND value <> 1"),
    "reader order": Rule("G29", "was sent to a reader behind a later one, or twice",
        "ordered", "what = 'read' AND value <= before"),
}  # fmt: skip
RULES = _OF_STRETCHES | {
    "commit order": Rule("G12", "was settled by a commit behind what this published",
        "commits", "late"),
}  # fmt: skip
RULES_OF_SESSIONS = {
    "blob order": Rule("G5", "what one session submitted is not applied in its order, each once",
        "submitted", "blob <> blob_before + 1"),
    "other session": Rule("G5", "another member went on with the session of a member",
        "submitted", "origin <> owner"),
}  # fmt: skip
_OF_RESUMED = RULES_OF_SESSIONS["blob order"]._replace(
    broken="what = 'submitted' AND value <> before + 1"
)
RULES_OF_STRETCHES = {
    name: rule._replace(table="resumed")
    for name, rule in {**_OF_STRETCHES, "blob order": _OF_RESUMED}.items()
}
MORE_OF_STRETCHES = (
    "CASE what WHEN 'submitted' THEN CONCAT('session ', who, ': ', value, ' after ', before) "
    "ELSE '' END"
)
MORE_OF_SESSIONS = (
    "CONCAT('session ', session, ' of ', owner, ': ', blob, ' by ', origin, ' after ', blob_before)"
)
