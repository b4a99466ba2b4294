"""G20, G11, G13: a message has one end, one holder at a time, and a flag when it comes again.

So each move must be allowed after the previous one, and after anything that happened to its whole
queue in between; a cold start keeps the persistent ready messages.
"""

from __future__ import annotations

from tools.verify.contract.rules import Rule

LIVES_SCHEMAS = {
    # `gaps`: the number of holes in the history before it. For a whole queue, `seq` is its next
    # number, or the first that a cold start assigned, and `of` the number of messages that were
    # there, or stayed.
    "moves": "queue bigint, seq bigint, time bigint, op int, flag boolean, cause int, of bigint, "
    "detail bigint, gaps int",
    "queue_moves": "queue bigint, seq bigint, time bigint, op int, flag boolean, cause int, "
    "of bigint, gaps int",
    "survivors": "queue bigint, time bigint, ready bigint, moved bigint",
    "closings": "channel bigint, gaps int, time bigint",
}
LIVES_SCHEMAS["queue_history"] = LIVES_SCHEMAS["queue_moves"]

# Moves: 2 ENQUEUED, 3 DELIVERED, 4 SETTLED, 5 RETURNED, 6 DROPPED, 10 REPEATED (at the place of the
# message that it stands for, which may have left); of a whole queue: 7 PURGED (causes: 1 deleted,
# 2 cold start, which is followed by what stays; flagged: its window was emptied too), 8 DECLARED,
# 9 RECOVERED (from which number on; 0: a priority queue, where what is persistent keeps its place).
LIVES = {
    # A message enters, is next delivered, unflagged and with its content, and is next settled by
    # the channel that has it, at a place that no other message ever had, before the queue was
    # emptied, if it ever was: that breaks no rule, because nothing came before it and nothing comes
    # after. (`reasons` names what a channel settles after it was closed.)
    "ordinary": """
        SELECT queue, seq FROM (
            SELECT queue, seq, MAX(time) AS ended FROM moves
            GROUP BY queue, seq HAVING COUNT(*) = 3 AND BIT_OR(CASE WHEN op = 2 THEN 1
                    WHEN op = 3 AND NOT flag THEN 2
                    WHEN op = 4 AND cause <> 3 THEN 4 ELSE 0 END) = 7
                AND MIN(CASE WHEN op = 2 THEN time END) < MIN(CASE WHEN op = 3 THEN time END)
                AND MIN(CASE WHEN op = 3 THEN time END) < MIN(CASE WHEN op = 4 THEN time END)
                AND MIN(CASE WHEN op < 4 THEN detail END) = MAX(CASE WHEN op < 4 THEN detail END)
                AND MIN(CASE WHEN op > 2 THEN of END) = MAX(CASE WHEN op > 2 THEN of END)
        ) AS whole LEFT JOIN (
            SELECT queue, MIN(time) AS emptied FROM queue_moves WHERE op <> 8 GROUP BY queue
        ) AS emptyings USING (queue)
        WHERE emptied IS NULL OR ended < emptied""",
    # How often the queue was emptied before, how often of transient messages only, and whether it
    # was deleted.
    "dated": """
        SELECT queue, seq, time, op, flag, cause, of, detail, gaps, first,
            COUNT(CASE WHEN op = 7 AND cause <> 2 OR op = 9 AND first <> 0 THEN 1 END) OVER past
                AS emptied,
            COUNT(CASE WHEN op = 9 AND first = 0 THEN 1 END) OVER past AS thinned,
            COUNT(CASE WHEN op = 7 AND cause = 1 THEN 1 END) OVER past > 0 AS deleted,
            COUNT(CASE WHEN op = 7 AND flag THEN 1 END) OVER past AS windows_emptied,
            COUNT(CASE WHEN op = 9 THEN 1 END) OVER past AS starts,
            COALESCE(MIN(CASE WHEN op = 8 THEN gaps END) OVER past, 0) AS gaps_at_declare
        FROM (
            SELECT queue, seq, time, op, flag, cause, of, detail, gaps,
                CAST(NULL AS BIGINT) AS first FROM moves ANTI JOIN ordinary USING (queue, seq)
            UNION ALL SELECT queue, NULL, time, op, flag, cause, of, NULL, gaps, seq
            FROM queue_moves
        ) AS joined WINDOW past AS (PARTITION BY queue ORDER BY time)""",
    "cold_starts": "SELECT * FROM dated WHERE op = 9",
    "linked": """
        SELECT queue, seq, time, op, flag, cause, of, detail, gaps, emptied, thinned,
            deleted, gaps_at_declare,
            LEAD(time) OVER own AS until, LAG(time) OVER own AS prior_time,
            LAG(op) OVER own AS prior, LAG(of) OVER own AS prior_of,
            LAG(gaps) OVER own AS prior_gaps, LAG(emptied) OVER own AS prior_emptied,
            LAG(thinned) OVER own AS prior_thinned,
            CASE WHEN FIRST_VALUE(op) OVER own = 2 THEN FIRST_VALUE(flag) OVER own ELSE TRUE END
                AS persistent,
            CASE WHEN FIRST_VALUE(op) OVER own = 2 THEN FIRST_VALUE(detail) OVER own END AS content,
            CASE WHEN FIRST_VALUE(op) OVER own = 2 THEN FIRST_VALUE(of) OVER own END AS number
        FROM dated WHERE op BETWEEN 2 AND 6
        WINDOW own AS (PARTITION BY queue, seq ORDER BY time)""",
    # Messages renumbered by a cold start, so they did not enter here.
    "renumbered": """
        SELECT linked.queue, linked.seq, MAX(cold.time) AS time, MAX(cold.gaps) AS gaps,
            MAX(cold.emptied) AS emptied, MAX(cold.thinned) AS thinned
        FROM linked JOIN cold_starts AS cold ON cold.queue = linked.queue
            AND linked.seq >= cold.first AND linked.seq - cold.first < cold.of
            AND cold.time < linked.time
        WHERE prior IS NULL AND cold.first <> 0
        GROUP BY linked.queue, linked.seq""",
    # `state` before the move: no message yet, ready, held, purged while ready, or over.
    "lives": """
        SELECT *, time >> 20 AS position, time & 1048575 AS ordinal,
            CASE WHEN prior = 3 THEN 'held' WHEN prior IN (4, 6) THEN 'over'
                WHEN prior IS NULL AND NOT cold THEN 'nothing'
                WHEN emptied > since_emptied OR thinned > since_thinned AND NOT persistent
                THEN 'purged' ELSE 'ready' END AS state,
            cold OR prior = 5 OR thinned > since_thinned AS comes_again
        FROM (
            SELECT linked.*, renumbered.time IS NOT NULL AS cold,
                COALESCE(prior_time, renumbered.time) AS since,
                COALESCE(prior_emptied, renumbered.emptied, 0) AS since_emptied,
                COALESCE(prior_thinned, renumbered.thinned, 0) AS since_thinned,
                linked.gaps = COALESCE(prior_gaps, renumbered.gaps, gaps_at_declare) AS known
            FROM linked LEFT JOIN renumbered ON prior IS NULL
                AND renumbered.queue = linked.queue AND renumbered.seq = linked.seq
        ) AS since""",
    # How many of these messages a cold start found persistent and ready, and how many of those it
    # renumbered moved later.
    "survivors": """
        SELECT cold_starts.queue, cold_starts.time, COUNT(*) AS ready, 0 AS moved
        FROM lives JOIN cold_starts ON cold_starts.queue = lives.queue
            AND cold_starts.emptied = lives.emptied + CASE WHEN first <> 0 THEN 1 ELSE 0 END
        WHERE lives.op IN (2, 5) AND persistent AND lives.time < cold_starts.time
            AND (until IS NULL OR until > cold_starts.time)
        GROUP BY cold_starts.queue, cold_starts.time
        UNION ALL SELECT queue, time, 0, COUNT(*) FROM renumbered GROUP BY queue, time""",
    # Messages that a channel held as it was closed, and that did not move at that position.
    "left_behind": """
        SELECT queue, seq, linked.time AS since, latest.time >> 20 AS position,
            latest.time & 1048575 AS ordinal
        FROM linked JOIN (
            SELECT channel, gaps, MAX(time) AS time FROM closings GROUP BY ALL
        ) AS latest ON of = channel AND linked.gaps = latest.gaps AND linked.time < latest.time
        WHERE op = 3 AND (until IS NULL OR (until >> 20) > (latest.time >> 20))""",
    # Messages that a queue did not take because it had taken another one with the same key.
    "repeats": """
        SELECT queue, seq, time >> 20 AS position, time & 1048575 AS ordinal, op, deleted, flag,
            gaps = gaps_at_declare AS known,
            MAX(CASE WHEN op = 2 THEN time END) OVER own AS since,
            MAX(CASE WHEN op = 2 AND NOT flag THEN 1 ELSE 0 END) OVER own = 1 AS of_transient,
            windows_emptied > MAX(CASE WHEN op = 2 THEN windows_emptied END) OVER own AS purged,
            starts > MAX(CASE WHEN op = 2 THEN starts END) OVER own AS started_cold
        FROM dated SEMI JOIN (SELECT queue, seq FROM dated WHERE op = 10) AS met USING (queue, seq)
        WHERE op IN (2, 10) WINDOW own AS (PARTITION BY queue, seq ORDER BY time)""",
    "counts": """
        SELECT 'examined' AS name, COUNT(*) AS n FROM lives
        UNION ALL SELECT 'examined', 3 * COUNT(*) FROM ordinary
        UNION ALL SELECT 'messages', COUNT(*) FROM lives WHERE prior IS NULL
        UNION ALL SELECT 'messages', COUNT(*) FROM ordinary""",
}

# A later cold start also finds messages that an earlier one kept and that have not moved since.
COLD_STARTS = {
    "turns": """
        SELECT *, COUNT(CASE WHEN op = 7 AND cause <> 2 THEN 1 END) OVER past AS purges,
            COALESCE(MIN(CASE WHEN op = 8 THEN gaps END) OVER past, 0) AS gaps_at_declare
        FROM queue_history WINDOW past AS (PARTITION BY queue ORDER BY time)""",
    "recoveries": """
        SELECT queue, time >> 20 AS position, time & 1048575 AS ordinal, -1 AS seq,
            turns.of AS kept, gaps = gaps_at_declare AS known,
            COALESCE(ready, 0) + CASE WHEN seq <> 0 AND LAG(seq) OVER past <> 0
                AND LAG(purges) OVER past = purges
                THEN LAG(turns.of - COALESCE(moved, 0)) OVER past ELSE 0 END AS found
        FROM turns LEFT JOIN (
            SELECT queue, time, CAST(SUM(ready) AS BIGINT) AS ready,
                CAST(SUM(moved) AS BIGINT) AS moved
            FROM survivors GROUP BY queue, time
        ) AS sums USING (queue, time)
        WHERE op = 9 WINDOW past AS (PARTITION BY queue ORDER BY time)""",
}

SINCE = "COALESCE(since >> 20, -1)"
RULES = {
    "place twice": Rule("G20", "a second message entered at the same place",
        "lives", "op = 2 AND state <> 'nothing'"),
    "invented": Rule("G20", "was moved, but never entered the queue",
        "lives", "op <> 2 AND state = 'nothing' AND known"),
    "repeat of nothing": Rule("G20",
        "was not taken as a repeat of a message that never entered the queue before",
        "repeats", "op = 10 AND (since IS NULL AND known OR deleted)"),
    "repeat of what goes": Rule("G20",
        "was not taken as a repeat of a message that was transient, as this one is not, or whose "
        "key went with it by a cold start, or by a purge",
        "repeats", "op = 10 AND (purged OR of_transient AND (flag OR started_cold))"),
    "ended twice": Rule("G20", "ended a second time",
        "lives", "op = 4 AND state = 'over' AND known"),
    "lapsed alive": Rule("G20", "was given up with its deleted queue, which was not deleted",
        "lives", "op = 4 AND cause = 3 AND NOT deleted AND known"),
    "settled unheld": Rule("G20", "was settled while nobody held it",
        "lives", "op = 4 AND state IN ('ready', 'purged') AND known"),
    "returned unheld": Rule("G20", "came back while nobody held it",
        "lives", "op = 5 AND state IN ('ready', 'purged', 'over') AND known"),
    "dropped held": Rule("G20", "was dropped while a channel held it",
        "lives", "op = 6 AND state = 'held' AND known"),
    "dropped ended": Rule("G20", "was dropped after its end",
        "lives", "op = 6 AND state IN ('over', 'purged') AND known"),
    "into deleted": Rule("G20", "entered or came back to a queue that was deleted",
        "lives", "op IN (2, 5) AND deleted"),
    "content": Rule("G20", "is not the message that entered the queue",
        "lives", "op IN (3, 5, 6) AND content <> 0 AND detail <> content"),
    "other due": Rule("G20", "was due by another number than that by which it entered",
        "lives", "op = 6 AND cause IN (2, 3) AND number <> of"),
    "delivered ended": Rule("G11", "was delivered after its end",
        "lives", "op = 3 AND state IN ('over', 'purged') AND known"),
    "first flagged": Rule("G11", "carries the redelivered flag, but was not delivered before",
        "lives", "op IN (3, 6) AND state = 'ready' AND known AND flag AND NOT comes_again"),
    "again unflagged": Rule("G11", "was delivered again without the redelivered flag",
        "lives", "op IN (3, 6) AND state = 'ready' AND known AND NOT flag AND comes_again"),
    "delivered held": Rule("G13", "was delivered while another channel, or the same, still held it",
        "lives", "op = 3 AND state = 'held' AND known"),
    "left behind": Rule("G13", "was kept by a channel that was closed", "left_behind", "TRUE"),
    "other holder": Rule("G13", "was given up by a channel that did not hold it",
        "lives", "op IN (4, 5) AND state = 'held' AND known AND of <> prior_of"),
}  # fmt: skip
RULES_OF_COLD_STARTS = {
    "kept others": Rule("G20", "a cold start did not keep exactly the persistent messages",
        "recoveries", "known AND kept <> found"),
}  # fmt: skip
MORE_OF_COLD_STARTS = "CONCAT('kept ', kept, ', of ', found, ' persistent ones that were ready')"
