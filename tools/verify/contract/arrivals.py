"""G12, G20, G23, G30: an accepted publish becomes one message, once in each queue of its route.

A message that enters a queue is the one that the command has just published, with its persistence.
That numbers of messages and places in queues rise by one, the reference model shows; that only an
executed publish makes a message, `causes`.
"""

from __future__ import annotations

from tools.verify.contract.rules import Rule

# Moves: 1 PUBLISHED (causes: 0 by a client, 1 by a transaction, 3 again: it makes no message, 4 its
# delay is over, 5 a dead letter that waited), 2 ENQUEUED, 6 DROPPED (causes 2: it is due, 3: it is
# a dead letter that is sent on, 4: replaced), 10 REPEATED: the queue recognises its key and does
# not take it. A place in a priority queue has the rank in the bits from 54 on. A move names a
# message by the low half of its number; `source` is the place of the last one published up to it.
ARRIVALS = {
    "entered": """
        SELECT logged.position, logged.ordinal, logged.queue, logged.seq, logged.flag, logged.nth,
            logged.source, logged.detail, message.flag AS published_flag,
            COALESCE(message.position = logged.position
                AND message.seq & 4294967295 = logged.of, FALSE) AS published
        FROM logged LEFT JOIN logged AS message ON message.nth = logged.source
        WHERE logged.op IN (2, 10)""",
    "copies": """
        SELECT *, ROW_NUMBER() OVER (PARTITION BY source, queue ORDER BY nth) AS copy,
            FIRST_VALUE(detail) OVER (PARTITION BY source ORDER BY nth) AS content
        FROM entered WHERE published""",
    # The moves in the same part of the log under the number of a repeated publish: one that reached
    # no queue has none.
    "again": """
        SELECT logged.position, logged.ordinal, -1 AS queue, logged.seq,
            logged.detail <> first.detail AS differs
        FROM logged JOIN logged AS first ON first.seq & 4294967295 = logged.seq
        WHERE logged.op = 1 AND logged.cause = 3 AND logged.seq > 0 AND first.op = 1
            AND first.cause <> 3 AND first.nth < logged.nth""",
    # A due message, or a dead letter that can go, is published at once, under the same number.
    "dues": """
        SELECT *, COALESCE(op = 6 AND LEAD(op) OVER own = 1 AND LEAD(nth) OVER own = nth + 1
                AND LEAD(position) OVER own = position AND LEAD(queue) OVER own = of
                AND LEAD(cause) OVER own = cause + 2, FALSE)
                AS goes_on,
            COALESCE(op = 1 AND LAG(op) OVER own = 6 AND LAG(nth) OVER own = nth - 1
                AND LAG(position) OVER own = position AND LAG(of) OVER own = queue
                AND LAG(cause) OVER own = cause - 2, FALSE)
                AS was_due
        FROM logged WHERE op = 6 AND cause IN (2, 3) OR op = 1 AND cause IN (4, 5)
        WINDOW own AS (ORDER BY nth)""",
    # A message replaced in a last-value queue makes way for the one that enters next.
    "replacements": """
        SELECT *, COALESCE(LEAD(op) OVER own = 2 AND LEAD(nth) OVER own = nth + 1
                AND LEAD(position) OVER own = position AND LEAD(queue) OVER own = queue
                AND LEAD(of) OVER own = of AND LEAD(seq) OVER own > seq, FALSE) AS by_newer
        FROM logged WHERE op = 6 AND cause = 4 OR op = 2 WINDOW own AS (ORDER BY nth)""",
}

# The publishes of each accepted PUBLISH, which is command 14; outcomes: 0 executed, 200 it reached
# no queue, 201 it was sent before.
ANSWERED = {
    "made": """
        SELECT position, COUNT(*) AS made, BOOL_OR(cause = 3) AS again, BOOL_OR(seq > 0) AS routed
        FROM logged WHERE op = 1 AND cause IN (0, 3) AND kind >= 0 GROUP BY position""",
    "answered": """
        SELECT position, 0 AS ordinal, -1 AS queue, -1 AS seq, outcome,
            COALESCE(made, 0) AS made, again, routed
        FROM commands LEFT JOIN made USING (position)
        WHERE kind = 14 AND outcome IN (0, 200, 201)""",
}

RULES = {
    "publish lost": Rule("G20", "a publish was accepted, but became no message",
        "answered", "made = 0"),
    "publish doubled": Rule("G20", "one publish became more than one message",
        "answered", "made > 1"),
    "publish misrouted": Rule("G20",
        "a publish was answered as unroutable and has a message, or as routed and has none; or as "
        "one that came again, and is none",
        "answered", """made = 1 AND (again <> (outcome = 201)
            OR NOT again AND routed <> (outcome = 0))"""),
    "rank": Rule("G12", "entered at a priority that the queue does not have",
        "logged", """op = 2 AND max_priority >= 0 AND max_priority NOT IN (256, 257)
            AND seq >> 54 > CASE WHEN max_priority > 257 THEN 0 ELSE max_priority END"""),
    "enqueued unpublished": Rule("G20",
        "entered the queue, or is a repeat there, without being published by this command",
        "entered", "NOT published"),
    "enqueued twice": Rule("G20", "one message entered the queue, or was a repeat there, twice",
        "copies", "copy > 1"),
    "due unpublished": Rule("G20",
        "was due after its delay, or sent on as a dead letter, but was not published then",
        "dues", "op = 6 AND NOT goes_on"),
    "due invented": Rule("G20",
        "was published as after a delay, or as a dead letter that waited, but none was due then",
        "dues", "op = 1 AND NOT was_due"),
    "replaced by nothing": Rule("G30",
        "was dropped as replaced, but no newer one entered its queue then",
        "replacements", "op = 6 AND NOT by_newer"),
    "other copy": Rule("G20", "entered one queue as another message than it entered the first one",
        "copies", "detail <> content"),
    "other number": Rule("G23",
        "was answered as one that came before by its number, and is another",
        "again", "differs"),
    "persistence": Rule("G20",
        "entered the queue with another persistence than it was published with",
        "copies", "flag <> published_flag"),
}  # fmt: skip
