"""Checks on what grows with traffic: batches and confirms.  All of it stays inside Spark.

Each function returns a DataFrame of findings; `collect_findings` brings the first few of each.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from broker.memberlog.records import Kind
from tools.verify.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FINDINGS_MAX = 20  # of one check: the first positions tell the story


def sequence(context: DataFrame) -> DataFrame:
    """G1: each life applies every position once, in order; only a transferred state may jump."""
    from pyspark.sql import functions as f

    batches = _kind(context, Kind.BATCH)
    off = batches.filter(
        (f.col("stood") + 1 != f.col("position")) & ~f.col("unknown") & f.col("stood").isNotNull()
    )
    gap = f.format_string(
        "positions %d to %d are missing", f.col("stood") + 1, f.col("position") - 1
    )
    twice = f.format_string(
        "positions %d to %d are applied again", f.col("position"), f.least("stood", "last")
    )
    what = f.when(f.col("position") > f.col("stood"), gap).otherwise(twice)
    where = f.when(f.col("position") > f.col("stood"), f.col("stood") + 1)
    return _findings(off, "G1", f.coalesce(where, f.col("position")), what)


def primary_only(context: DataFrame) -> DataFrame:
    """G7: what is applied belongs to the primary that the life is in; others say nothing.

    A member that leaves a primary without having learnt that its last messages were safe may apply
    them on its way into the next one: then some member applied the same while it was active.
    """
    from pyspark.sql import functions as f

    batches = _kind(context, Kind.BATCH).filter(~f.col("unknown"))
    foreign = batches.filter(
        ~f.col("epoch").eqNullSafe(f.col("primary_epoch"))
        | ~f.col("ring_seq").eqNullSafe(f.col("primary_ring"))
    ).filter(f.col("stood").isNotNull())
    known = f.coalesce(f.col("primary_epoch").cast("string"), f.lit("none"))
    what = f.format_string(
        "a batch of epoch %d, ring %d is applied in epoch %s", "epoch", "ring_seq", known
    )
    late = batches.filter(~f.col("active") & f.col("primary_epoch").isNotNull())
    regular = _kind(context, Kind.BATCH).filter("active").select("position", "chain")
    alone = late.join(regular, ["position", "chain"], "left_anti")
    after = f.lit("a batch is applied outside of the primary, and by no member in it")
    spoken = _kind(context, Kind.CONFIRM).filter(~f.col("active") & ~f.col("unknown"))
    first = f.get("positions", f.lit(0))
    return _union(
        _findings(foreign, "G7", f.col("position"), what),
        _findings(alone, "G7", f.col("position"), after),
        _findings(spoken, "G7", first, f.lit("a confirm is given outside of the primary")),
    )


def anchors(records: DataFrame) -> DataFrame:
    """G14, G10: what starts, snapshots, votes and stops say of a position is what was applied."""
    from pyspark.sql import functions as f

    kinds = [Kind.START, Kind.SNAPSHOT, Kind.VOTE, Kind.STOP]
    said = records.filter(f.col("kind").isin(*map(int, kinds))).filter("position > 0")
    said = said.filter(~(f.col("kind").eqNullSafe(int(Kind.VOTE)) & (f.col("text") == "undecided")))
    said = said.select(
        *("member", "incarnation", "kind", "position", "text"),
        f.col("chain").alias("said_chain"),
        f.col("root").alias("said_root"),
    )
    applied = (
        _kind(records, Kind.BATCH)
        .select(f.col("last").alias("position"), "chain", "root")
        .join(f.broadcast(said.select("position").distinct()), "position", "left_semi")
        .groupBy("position")
        .agg(f.collect_set("chain").alias("chains"), f.collect_set("root").alias("roots"))
    )
    both = said.join(applied, "position")
    name = (
        f.when(f.col("kind") == int(Kind.START), "the recovered state")
        .when(f.col("kind") == int(Kind.SNAPSHOT), "the transferred state")
        .when(f.col("kind") == int(Kind.VOTE), "the vote")
        .otherwise("the state at the stop")
    )
    chain = both.filter(~f.array_contains("chains", f.col("said_chain")))
    root = both.filter(f.col("said_root").isNotNull()).filter(
        ~f.array_contains("roots", f.col("said_root"))
    )
    proof = f.when(f.col("kind") == int(Kind.VOTE), "G10").otherwise("G14")
    return _union(
        _findings(chain, proof, f.col("position"), f.concat(name, f.lit(" has another chain"))),
        _findings(root, proof, f.col("position"), f.concat(name, f.lit(" has another root"))),
    )


def synchrony(context: DataFrame) -> DataFrame:
    """G2: lives that go together from one primary view to the next applied the same in it.

    A life that came into the later view by a transferred state did not go with them.  Where one of
    them came into the earlier view in its middle, what is compared begins behind that.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    life = ["member", "incarnation"]
    in_order = Window.partitionBy(*life).orderBy("lsn")
    active = _kind(context, Kind.ACTIVE)
    moves = active.select(
        *life,
        "epoch",
        "lsn",
        f.lead("epoch").over(in_order).alias("next_epoch"),
        f.lead("position").over(in_order).alias("next_base"),
        f.lead("stood").over(in_order).alias("stood_then"),
        f.lead("lsn", 2).over(in_order).alias("until_lsn"),
    ).filter("next_epoch is not null")
    jumps = _kind(context, Kind.SNAPSHOT).select(
        *life, f.col("lsn").alias("jump_lsn"), f.col("position").alias("jump_to")
    )
    jumped = moves.join(jumps, life).filter(
        (f.col("jump_to") >= f.col("next_base"))
        & (f.col("jump_lsn") > f.col("lsn"))
        & (f.col("until_lsn").isNull() | (f.col("jump_lsn") < f.col("until_lsn")))
    )
    moves = moves.join(jumped.select(*life, "epoch"), [*life, "epoch"], "left_anti")
    batches = _kind(context, Kind.BATCH).select(*life, "epoch", "seq", "position", "ring_seq")
    starts = batches.groupBy(*life, "epoch").agg(f.min("position").alias("first"))
    lows = (
        moves.join(starts, [*life, "epoch"], "left")
        .groupBy("epoch", "next_epoch")
        .agg(
            f.max(f.coalesce(f.col("first") - 1, f.col("stood_then"))).alias("low"),
            f.count("*").alias("together"),
        )
        .filter("together > 1")
    )
    compared = moves.join(f.broadcast(lows), ["epoch", "next_epoch"]).join(
        batches, [*life, "epoch"], "left"
    )
    counted = f.when(f.col("position") > f.col("low"), 1)
    sums = compared.groupBy(*life, "epoch", "next_epoch").agg(
        f.count(counted).alias("n"),
        f.sum(f.when(counted == 1, f.xxhash64("ring_seq", "seq", "position") % (1 << 40))).alias(
            "h"
        ),
        f.max(f.when(counted == 1, f.struct("seq", "position"))).alias("end"),
    )
    group = Window.partitionBy("epoch", "next_epoch")
    # The reference is the member that applied most; who differs from it is named.
    best = f.max(f.struct("n", "h", "end", "member")).over(group)
    odd = sums.withColumn("best", best).filter(
        (f.col("n") != f.col("best.n")) | ~f.col("h").eqNullSafe(f.col("best.h"))
    )
    what = f.format_string(
        "of epoch %d this member applied %d batches up to seq %s, member %s %d up to seq %s, "
        "and both went on to epoch %d",
        *("epoch", "n", f.coalesce(f.col("end.seq").cast("string"), f.lit("-")), "best.member"),
        *("best.n", f.coalesce(f.col("best.end.seq").cast("string"), f.lit("-")), "next_epoch"),
    )
    return _findings(odd, "G2", f.coalesce("end.position", f.lit(-1)), what)


def confirms(context: DataFrame) -> DataFrame:
    """G9: a confirm names an accepted publish of this life, applied before and durable by now."""
    from pyspark.sql import functions as f

    given = confirmed(context)
    early = given.filter("confirmed > mark")
    what = f.format_string("confirmed above the durable mark %d", "mark")
    own = acceptable(context).select(
        "member", "incarnation", "confirmed", f.col("lsn").alias("applied_lsn")
    )
    paired = given.join(own, ["member", "incarnation", "confirmed"], "left")
    unfounded = paired.filter(f.col("applied_lsn").isNull())
    hasty = paired.filter(f.col("applied_lsn") > f.col("lsn"))
    return _union(
        _findings(early, "G9", f.col("confirmed"), what),
        _findings(
            unfounded,
            "G9",
            f.col("confirmed"),
            f.lit("confirmed, but this member did not apply an accepted publish of its own there"),
        ),
        _findings(hasty, "G9", f.col("confirmed"), f.lit("confirmed before it was applied")),
    )


def kept(context: DataFrame) -> DataFrame:
    """G8: a confirmed publish is in the log of every life that went past its position."""
    from pyspark.sql import functions as f

    life = ["member", "incarnation"]
    batches = _kind(context, Kind.BATCH)
    safe = (
        acceptable(context)
        .join(confirmed(context).select(*life, "confirmed"), [*life, "confirmed"], "left_semi")
        .groupBy("position", "chain")
        .agg(f.min("confirmed").alias("confirmed"), f.min("member").alias("confirmer"))
    )
    spans = batches.groupBy(*life).agg(
        f.min("position").alias("low"), f.max("position").alias("high")
    )
    holes = context.filter(
        (f.col("kind") == int(Kind.SNAPSHOT))
        | ((f.col("kind") == int(Kind.BATCH)) & f.col("unknown"))
    ).select(
        f.col("member").alias("m"),
        f.col("incarnation").alias("i"),
        f.coalesce("stood", f.lit(0)).alias("hole_from"),
        f.when(f.col("kind") == int(Kind.SNAPSHOT), f.col("position"))
        .otherwise(f.col("position") - 1)
        .alias("hole_to"),
    )
    due = safe.crossJoin(f.broadcast(spans)).filter("low <= position and position <= high")
    due = due.join(
        f.broadcast(holes),
        (f.col("member") == f.col("m"))
        & (f.col("incarnation") == f.col("i"))
        & (f.col("position") > f.col("hole_from"))
        & (f.col("position") <= f.col("hole_to")),
        "left_anti",
    )
    have = batches.select(*life, "position", "chain")
    lost = due.join(have, [*life, "position", "chain"], "left_anti")
    what = f.format_string("the publish that %s confirmed is not applied here", "confirmer")
    return _findings(lost, "G8", f.col("confirmed"), what)


def confirmed(context: DataFrame) -> DataFrame:
    """Return one row per confirmed position: who, lsn, epoch, mark, confirmed."""
    from pyspark.sql import functions as f

    return _kind(context, Kind.CONFIRM).select(
        "member", "incarnation", "lsn", "epoch", "mark", f.explode("positions").alias("confirmed")
    )


def acceptable(context: DataFrame) -> DataFrame:
    """Return one row per accepted publish of a member's own clients: who, batch, confirmed."""
    from pyspark.sql import functions as f

    return _kind(context, Kind.BATCH).select(
        *("member", "incarnation", "lsn", "position", "chain"),
        f.explode("positions").alias("confirmed"),
    )


def collect_findings(*checks: DataFrame) -> list[Finding]:
    """Run all checks as one job; return the first findings of each."""
    rows = reduce(lambda a, b: a.unionByName(b), checks).collect()
    return [Finding(row.property, row.member, row.incarnation, row.where, row.what) for row in rows]


def _kind(frame: DataFrame, kind: Kind) -> DataFrame:
    return frame.filter(frame.kind == int(kind))


def _findings(frame: DataFrame, proof: str | Column, where: Column, what: Column) -> DataFrame:
    from pyspark.sql import functions as f

    property_ = f.lit(proof) if isinstance(proof, str) else proof
    return (
        frame.select(
            property_.alias("property"),
            "member",
            "incarnation",
            where.cast("bigint").alias("where"),
            what.alias("what"),
        )
        .orderBy("where", "member")
        .limit(FINDINGS_MAX)
    )


def _union(*frames: DataFrame) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), frames)
