"""The rules that turn a member's knowledge into findings: the fault, its effect, and the remedy.

A finding is `critical` where clients are not served now, a `warning` where the next fault would
cause that or something waits for an operator, and a `notice` where it may be of interest. Each has
a stable name, by which alerts are set and which heads its paragraph in docs/ONCALL.md.

Pure: all facts are handed in.
Decision: docs/decisions/0113-what-is-wrong-is-said-by-the-broker.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from broker.findings.situation import MemberSeen, Situation
from broker.machine.handlers.alarms import DISK, FULL, MEMORY, WORDS
from broker.statistics.figures import Figures
from broker.statistics.noted_queues import Few
from vsync.types import record

CRITICAL, WARNING, NOTICE = LEVELS = ("critical", "warning", "notice")
CLUSTER, MEMBER, QUEUE, LINK, STORE = ("cluster", "member", "queue", "link", "store")
NAMES = {
    "cluster-waits": (CRITICAL, CLUSTER),
    "no-quorum": (CRITICAL, CLUSTER),
    "member-not-serving": (CRITICAL, MEMBER),
    "member-faulty": (CRITICAL, MEMBER),
    "no-active-member": (CRITICAL, CLUSTER),
    "disk-full": (CRITICAL, STORE),
    "disk-low": (CRITICAL, STORE),
    "memory-low": (CRITICAL, MEMBER),
    "certificate-ended": (CRITICAL, MEMBER),
    "member-down": (WARNING, MEMBER),
    "member-late": (WARNING, MEMBER),
    "disk-slow": (WARNING, STORE),
    "disk-lags": (WARNING, STORE),
    "space-unknown": (WARNING, STORE),
    "checkpoint-late": (WARNING, STORE),
    "clock-off": (WARNING, MEMBER),
    "views-unsteady": (WARNING, CLUSTER),
    "ring-link-down": (WARNING, LINK),
    "pair-alone": (WARNING, MEMBER),
    "sole-voter": (WARNING, CLUSTER),
    "clients-refused": (WARNING, MEMBER),
    "member-drained": (WARNING, MEMBER),
    "certificate-ends": (WARNING, MEMBER),
    "letters-wait": (WARNING, QUEUE),
    "consumers-stuck": (WARNING, QUEUE),
    "definitions-unloaded": (WARNING, MEMBER),
    "settings-refused": (WARNING, MEMBER),
    "shovel-failed": (WARNING, LINK),
    "federation-failed": (WARNING, LINK),
    "replica-failed": (WARNING, LINK),
    "queue-untaken": (NOTICE, QUEUE),
    "member-joining": (NOTICE, MEMBER),
    "upgrade-open": (NOTICE, CLUSTER),
}
"""The severity and kind of objects of each finding, in the order in which an operator reads
them.
"""
UNSTEADY_MS, UNSTEADY_VIEWS = 600_000, 4
"""More view changes than this in this time are too many."""
LATE_S = 1.0
"""Reported from this many seconds of lateness of the process in ten minutes."""
SLOW_COMMITS_S = 5.0
"""Reported from this many seconds of slow commits in ten minutes."""
LONG_LOG = 3
"""Reported above this many times the log behind the checkpoint with which the next one is due; what
is logged while one is written is far less."""
CERTIFICATE_MS = 28 * 86_400_000
LINKS = {
    "shovel": ("shovel-failed", "qpidctl shovel_status"),
    "federation link": ("federation-failed", "qpidctl federation_status"),
    "replica": ("replica-failed", "qpidctl replica_status"),
}
"""The kinds of links: the finding for a failed one, and the command that shows its state."""


@record
class Finding:
    """One problem that needs attention."""

    name: str
    objects: list[str]
    """The objects concerned, the worst few of them."""
    what: str
    follows: str
    do: str
    since_ms: int = 0
    """0: unknown."""
    more: int = 0
    """The number of objects beside those named."""

    @property
    def severity(self) -> str:
        """Its severity."""
        return NAMES[self.name][0]

    @property
    def kind(self) -> str:
        """The kind of its objects."""
        return NAMES[self.name][1]

    @property
    def count(self) -> int:
        """The number of its objects."""
        return len(self.objects) + self.more

    def row(self) -> dict[str, object]:
        """Its form in answers."""
        return {
            "name": self.name, "severity": self.severity, "kind": self.kind,
            "objects": self.objects, "count": self.count, "what": self.what,
            "follows": self.follows, "do": self.do, "since_ms": self.since_ms,
            "see": f"docs/ONCALL.md#{self.name}",
        }  # fmt: skip


def findings(seen: Situation) -> list[Finding]:
    """All present findings, the gravest first."""
    order = list(NAMES)
    return sorted(
        (one for look in LOOKS for one in look(seen)), key=lambda one: order.index(one.name)
    )


def unknown(seen: Situation) -> list[str]:
    """What this member cannot know now, with the reason."""
    found = []
    if seen.queues is None:
        found.append(
            f"queues, shovels and links: {seen.me} is {seen.status}, so what it holds may be old"
        )
    return found + [
        f"disk, memory and pauses of {one.name}: {seen.me} has not heard of them lately"
        for one in seen.members
        if one.figures is None and one.state != "DOWN" and not one.arbitrator
    ]


def _not_serving(seen: Situation) -> Iterator[Finding]:
    why, _, advice = (seen.reason or "it does not say why").partition(". ")
    if seen.status == "ACTIVE" or _is_faulty(seen, seen.me):
        return
    if seen.status == "WAITING":
        yield Finding(
            "cluster-waits", [seen.cluster],
            f"{seen.me} waits for the first start of its cluster: {why}",
            "It serves nobody until "
            + ("both members" if seen.pair else "--cluster-size members")
            + " are there, at the first start only.",
            "Start the other members. If they run, check that --cluster-name is the same, that "
            + ("--hac-peer, or the slave's --master-connector, is the other one's ring address"
               if seen.pair else "--cluster-nodes lists each one's --cluster-bind")
            + ", and that no firewall blocks these ports.",
        )  # fmt: skip
    elif seen.status == "INQUORATE":
        yield Finding(
            "no-quorum", [seen.cluster], f"{seen.me} serves nobody: {why}",
            "Nothing is confirmed here. Confirmed messages are on the disks of a majority.",
            advice or "Start the missing members; service then resumes by itself. If they run, "
            "check the network between them.",
            since_ms=seen.views[-1].at_ms if seen.views and not seen.views[-1].primary else 0,
        )  # fmt: skip
    else:
        yield Finding(
            "member-not-serving", [seen.me], f"{seen.me} does not serve yet: {why}",
            "It fetches what it missed from the others, or waits for a view.",
            f"Wait: qpid-cluster -t 600 --await {seen.me} ANOTHER-MEMBER. Its log shows the "
            "progress.",
        )  # fmt: skip


def _faulty(seen: Situation) -> Iterator[Finding]:
    for one in seen.members:
        if _is_faulty(seen, one.name):
            yield Finding(
                "member-faulty", [one.name],
                f"{one.name} detected a fault of its own and serves nobody"
                + (f": {seen.reason}" if one.name == seen.me else ""),
                "Its state differs from the majority's; the other members continue.",
                "Keep a copy of its data directory, then restart it: it takes the others' state.",
            )  # fmt: skip


def _down(seen: Situation) -> Iterator[Finding]:
    if seen.status != "ACTIVE":
        return
    spare = seen.votes - seen.votes_needed
    instead = (
        "start a new one with its address and an empty --data-dir" if seen.pair else
        "qpid-cluster --replace-voter {} NEW"
    )  # fmt: skip
    for one in seen.members:
        if one.state != "DOWN":
            continue
        yield Finding(
            "member-down", [one.name], f"{one.name} is down",
            "The other one serves alone, or waits: qpid-ha query says which." if seen.pair else
            "The others continue. "
            + ("The loss of one more member stops the cluster." if spare < 1 else
               f"They can lose {spare} more vote{'s' * (spare > 1)}."),
            "Does its process run? If it runs and does not answer, it is stopped or hangs: kill it "
            "and start it again. If not, the last lines of its log, or its exit code, say why it "
            "ended: start it with its old --data-dir. If the machine is gone for good: "
            + instead.format(one.name),
            since_ms=_gone_since(seen, one.name),
        )  # fmt: skip


def _joining(seen: Situation) -> Iterator[Finding]:
    if seen.status in ("INQUORATE", "WAITING"):
        return  # nobody has what they would get
    for one in seen.members:
        if one.state == "JOINING" and one.name != seen.me:
            share = one.received_percent
            yield Finding(
                "member-joining", [one.name],
                f"{one.name} is joining" + ("" if share is None else f", {share:g} %"),
                "It serves nobody until it has caught up.",
                f"Wait: qpid-cluster -t 600 --await {one.name}",
            )  # fmt: skip


BLOCKED = "Publishers are blocked at all members; consumers, acks and purges continue."
ALARMS = {
    FULL: ("disk-full", "Free space on that disk. No confirmed message is lost."),
    DISK: ("disk-low",
           "Free space on that member's disk, or consume or purge messages (qpidctl purge_queue "
           "NAME). Publishers then continue by themselves."),
    MEMORY: ("memory-low",
             "Consume or purge the long queues listed below, or raise the member's memory-limit "
             "in its --config file, then SIGHUP; a member started without a file, or with "
             "--memory-limit, must be restarted."),
}  # fmt: skip
"""By the subject of an alarm: its finding, and the remedy."""


NOW = {DISK: "disk_free_bytes", MEMORY: "memory_bytes"}
"""The figure whose value at its beginning an alarm contains."""


def _alarms(seen: Situation) -> Iterator[Finding]:
    measured = {one.name: figures for one, figures in _measured(seen)}
    for (name, subject), detail in seen.alarms.items():
        found, do = ALARMS[subject]
        what = f"{name}: {WORDS[subject]}, {detail}"
        if name in measured and subject in NOW:
            what += f" when it began; now {measured[name][NOW[subject]] / 1e6:.1f} MB"
        yield Finding(found, [name], what, BLOCKED, do)
    if seen.disk_alarm:
        yield Finding(
            "disk-lags", [seen.me], f"{seen.me}: {seen.disk_alarm}",
            "The whole cluster is slowed down for that disk.",
            "Find out what else writes there (iostat -x 1). A member that lags too long leaves by "
            "itself, with code 81.",
        )  # fmt: skip
    if seen.space_unknown:
        yield Finding(
            "space-unknown", [seen.me],
            f"{seen.me} cannot read its free space and memory: {seen.space_unknown}",
            "Alarms about both stay as they were; a full disk is noticed when a write fails.",
            "Look at the file system of --data-dir (df, dmesg), and repair it: it reads again by "
            "itself.",
        )  # fmt: skip
    for name, text in seen.clock_alarms.items():
        yield Finding(
            "clock-off", [name], text, "It continues, but could not rejoin with this clock.",
            "Correct that machine's clock: chronyc tracking, timedatectl.",
        )  # fmt: skip


def _late(seen: Situation) -> Iterator[Finding]:
    for one, figures in _measured(seen):
        total = figures["late_recent_s"]
        if total < LATE_S:
            continue
        if figures["late_by_work_s"] * 2 > total:
            do = (
                "These were long pieces of its own work: the lines 'a long piece of work' in its "
                "log say when. Report them with qpid-cluster --diagnose."
            )
        elif figures["late_by_memory_s"] * 2 > total:
            do = (
                "Its memory was paged out: add memory to that machine, or reserve some for the "
                "broker's service, and find out what else uses it (free -m, vmstat 1)."
            )
        else:
            do = (
                "It got no processor time, or was stopped (SIGSTOP, a suspended or migrated "
                "virtual machine): find out what else runs there (top, the column st of vmstat "
                "1), and give it a processor of its own."
            )
        yield Finding(
            "member-late", [one.name],
            f"{one.name} was late {_times(figures, 'late')}",
            "All members wait for a late member, and exclude one that stays late.", do,
            since_ms=_since(seen, figures["late_since_s"]),
        )  # fmt: skip


def _refused(seen: Situation) -> Iterator[Finding]:
    for one, figures in _measured(seen):
        if times := round(figures["clients_refused_recent"]):
            yield Finding(
                "clients-refused", [one.name],
                f"{one.name} refused {times} connection{'s' * (times > 1)} in ten minutes, as "
                "there are too many",
                "These clients try other members, or wait.",
                "Its log names the limit (is not let in); qpid-stat -c shows who has so many. "
                "Raise the limit in the --config file, then SIGHUP. If open files are the limit, "
                "raise LimitNOFILE of its service and restart it.",
                since_ms=_since(seen, figures["clients_refused_since_s"]),
            )  # fmt: skip


def _slow_disks(seen: Situation) -> Iterator[Finding]:
    for one, figures in _measured(seen):
        if figures["slow_commits_recent_s"] >= SLOW_COMMITS_S:
            yield Finding(
                "disk-slow", [one.name],
                f"{one.name} waited long for its disk {_times(figures, 'slow_commits')}",
                "Confirms wait for the disks of a majority; if it gets worse, all members are "
                "slowed down.",
                "Find out what else writes there (iostat -x 1), and whether the disk is about to "
                "fail (dmesg, smartctl -a).",
                since_ms=_since(seen, figures["slow_commits_since_s"]),
            )  # fmt: skip


def _late_checkpoints(seen: Situation) -> Iterator[Finding]:
    for one, figures in _measured(seen):
        log, limit = figures["store_log_bytes"], figures["store_log_limit_bytes"]
        if log <= LONG_LOG * limit or not limit:
            continue
        why, do = _why_late(figures)
        yield Finding(
            "checkpoint-late", [one.name],
            f"{one.name} has {log / 1e6:.0f} MB of log behind its checkpoint, where the next one "
            f"is due with {limit / 1e6:.0f} MB: {why}",
            "Its next start executes all of this log again, and its store keeps growing.", do,
        )  # fmt: skip


def _why_late(figures: Figures) -> tuple[str, str]:
    """Why no checkpoint was written, and what to do."""
    if figures["quorum_halted"]:
        return (
            "its state is in doubt, so none is written",
            "See member-faulty. Once that is settled, the next checkpoint is written by itself.",
        )
    if figures["store_checkpoint_under_way"]:
        return (
            "the one in progress takes that long",
            "Its disk is slow: find out what else writes there (iostat -x 1), and whether it is "
            "about to fail (dmesg, smartctl -a).",
        )
    if given_up := round(figures["store_checkpoints_given_up_total"]):
        return (
            f"there is no space for one; {given_up} were given up since the member started",
            "Free space on the disk of its --data-dir: a checkpoint is as large as its state.",
        )
    return (
        "the reason is not known",
        "Report it with qpid-cluster --diagnose; its log may say more.",
    )


def _certificates(seen: Situation) -> Iterator[Finding]:
    for one, figures in _measured(seen):
        ends_at_ms = round(figures["certificate_ends_at"]) * 1000
        left_ms = ends_at_ms - seen.now_ms
        if not ends_at_ms or left_ms > CERTIFICATE_MS:
            continue
        over, days = left_ms <= 0, abs(left_ms) // 86_400_000
        time = "one day" if days == 1 else f"{days} days" if days else "less than a day"
        yield Finding(
            "certificate-ended" if over else "certificate-ends", [one.name],
            f"the certificate of {one.name} "
            + (f"expired {time} ago" if over else f"expires in {time}"),
            "Clients that verify it cannot connect" + (" now." if over else " then."),
            "Replace the certificate files, then send the broker SIGHUP. Every member has its own "
            "certificate.",
            since_ms=ends_at_ms if over else 0,
        )  # fmt: skip


def _unsteady(seen: Situation) -> Iterator[Finding]:
    since = seen.now_ms - UNSTEADY_MS
    restarted = _restarted_once(seen, since)
    changes = [
        (before, after) for before, after in pairwise(seen.views)
        if before.primary and after.at_ms > since
        and not restarted.issuperset({*before.members}.symmetric_difference(after.members))
    ]  # fmt: skip
    if len(changes) <= UNSTEADY_VIEWS:
        return
    gone = Counter(
        name for before, after in changes for name in before.members if name not in after.members
    )
    who = ", ".join(f"{name} ({times})" for name, times in gone.most_common(3))
    what = f"{len(changes)} view changes in ten minutes"
    yield Finding(
        "views-unsteady", [seen.cluster], f"{what}; out: {who}" if who else what,
        "Each view change is a short pause for all clients.",
        "The logs of the other members say why a member was out (silent, refuses connections, gave "
        "it up); its own log says whether it was late itself (this process came N ms late).",
        since_ms=changes[0][1].at_ms,
    )  # fmt: skip


def _restarted_once(seen: Situation, since: int) -> set[str]:
    """Members that left in order and were not out again: a wanted restart.

    A member that leaves again and again, because its disk is full or slow, does not count.
    """
    out = Counter(
        name for before, after in pairwise(seen.views) if after.at_ms > since
        for name in before.members if name not in after.members
    )  # fmt: skip
    left = {name for one in seen.views if one.at_ms > since for name in one.left}
    return {name for name in left if out[name] == 1}


def _roles(seen: Situation) -> Iterator[Finding]:
    waits = seen.status == "WAITING"  # which is a finding of its own
    if seen.roles and not waits and not {"active", "recovering"}.intersection(seen.roles):
        what = "pair" if seen.pair else "active-passive cluster"
        yield Finding(
            "no-active-member", [seen.cluster], f"no member of this {what} is active",
            *(("Clients wait or are refused.",
               "qpid-ha query says what each member waits for: the other one, which you start with "
               "its old --data-dir, or a client that connects to it.") if seen.pair else
              ("All members refuse clients.",
               "qpid-ha status --all; with --ha-promotion manual: qpid-ha -b MEMBER promote")),
        )  # fmt: skip
    for one, figures in _measured(seen):
        if figures["pair_alone"]:
            yield Finding(
                "pair-alone", [one.name], f"{one.name} has gone on alone, without its peer",
                "Newly confirmed messages have one copy only.",
                "Start the peer with its old --data-dir.",
            )  # fmt: skip


def _sole_voter(seen: Situation) -> Iterator[Finding]:
    voters = [one for one in seen.members if one.voter]
    others = [one.name for one in seen.members if not one.voter and one.state != "DOWN"]
    if seen.status == "ACTIVE" and len(voters) == 1 and others and not seen.pair:
        name = voters[0].name
        yield Finding(
            "sole-voter", [seen.cluster],
            f"{name} is the only voter, without a vote: {', '.join(others)}",
            f"Without {name} nobody is served, and confirmed messages may be on its disk only.",
            f"Give two of them a vote, one after the other: qpid-cluster --add-voter {others[0]}",
        )  # fmt: skip


def _waiting_for_operators(seen: Situation) -> Iterator[Finding]:
    for name in seen.drained:
        yield Finding(
            "member-drained", [name], f"{name} is drained: it accepts no clients",
            "It still votes and replicates.",
            f"When maintenance is over: qpid-cluster --undrain {name}",
        )  # fmt: skip
    for link in seen.links_down:
        yield Finding(
            "ring-link-down", [link], f"the link to {link} is down",
            "Its member is reached over the other network.",
            "Repair that network: another failure would cut the member off.",
        )  # fmt: skip
    if seen.version_possible > seen.version and seen.status == "ACTIVE":
        yield Finding(
            "upgrade-open", [seen.cluster],
            f"version {seen.version} of the machine is in force; all members support "
            f"{seen.version_possible}",
            "Newer features are refused or without effect.",
            "When no member will go back to the older release: qpid-cluster --upgrade",
        )  # fmt: skip


def _definitions(seen: Situation) -> Iterator[Finding]:
    if seen.not_taken:
        yield Finding(
            "settings-refused", [seen.me],
            f"{seen.me} did not apply all settings that it read at SIGHUP: {seen.not_taken}",
            "The former settings stay in force; a restart with the present ones would fail.",
            "Correct the named settings, then send SIGHUP again (systemctl reload qpidd).",
        )  # fmt: skip
    if seen.unloaded is not None:
        file, why = seen.unloaded
        yield Finding(
            "definitions-unloaded", [seen.me],
            f"{seen.me} loaded only a part of --load-definitions {file}: {why}",
            "What was refused is not there; the log names each entry. Clients are served.",
            "Correct the file, then load it into the running cluster: qpidctl import_definitions "
            "FILE. The finding disappears when the member starts with the corrected file.",
        )  # fmt: skip


def _queues(seen: Situation) -> Iterator[Finding]:
    if seen.queues is None:
        return
    if (letters := seen.queues.letters).count:
        yield _of_queues(
            "letters-wait", letters, "dead letters that cannot be delivered",
            "They wait, and count in the length of their queue.",
            "Check that the dead-letter exchange exists, that a queue is bound to it, and that "
            "this queue is not full.",
        )  # fmt: skip
    if (stuck := seen.queues.stuck).count:
        yield _of_queues(
            "consumers-stuck", stuck, "consumers hold messages and have settled none for a minute",
            "Messages behind these are not delivered.",
            "qpidctl list_consumers shows the consumers. Check that program, or close its "
            "connection: qpidctl close_connection PID REASON returns its messages to the queue.",
        )  # fmt: skip
    if (untaken := seen.queues.untaken).count:
        yield _of_queues(
            "queue-untaken", untaken, "messages wait in queues without consumers",
            "They stay until they are consumed, or a limit drops them.",
            "Start the consumers; limit the queue by a policy (max-length, message-ttl).",
        )  # fmt: skip


def _of_queues(name: str, few: Few, what: str, follows: str, do: str) -> Finding:
    longest = few.longest()
    named = ", ".join(
        f"{one.vhost} {one.name} ({one.messages}"
        + (f", {one.grew} more in the last minute" if one.grew else "")
        + ")"
        for one in longest
    )
    more = few.count - len(longest)
    return Finding(
        name, [f"{one.vhost} {one.name}" for one in longest],
        f"{what}: {named}" + (f" and {more} more" if more else ""), follows, do, more=more,
    )  # fmt: skip


def _movers(seen: Situation) -> Iterator[Finding]:
    for link in seen.links:
        # While it tries again, the reason is that of its last end.
        if link.state == "terminated" or (link.state == "starting" and link.reason):
            name, command = LINKS[link.what]
            yield Finding(
                name, [link.name],
                f"{link.what} {link.name} has failed: {link.reason or 'it does not say why'}",
                "Its messages wait; it retries by itself.",
                f"Correct the cause; {command} shows the state.",
            )  # fmt: skip


LOOKS: tuple[Callable[[Situation], Iterator[Finding]], ...] = (
    _not_serving, _faulty, _roles, _alarms, _certificates, _down, _late, _refused, _slow_disks,
    _late_checkpoints,
    _unsteady, _sole_voter, _waiting_for_operators, _definitions, _queues, _movers, _joining,
)  # fmt: skip


def _measured(seen: Situation) -> Iterator[tuple[MemberSeen, dict[str, float]]]:
    """The members whose figures were received."""
    for one in seen.members:
        if one.figures is not None:
            yield one, one.figures


def _is_faulty(seen: Situation, name: str) -> bool:
    return any(one.name == name and bool(f["quorum_halted"]) for one, f in _measured(seen))


def _times(figures: dict[str, float], of: str) -> str:
    """How often in ten minutes, and for how long."""
    times, total = round(figures[f"{of}_recent"]), figures[f"{of}_recent_s"]
    longest = figures[f"{of}_longest_s"]
    if times == 1:
        return f"once in ten minutes, by {total:.1f} s"
    return f"{times} times in ten minutes, {total:.1f} s in all, {longest:.1f} s at the longest"


def _since(seen: Situation, ago_s: float) -> int:
    return seen.now_ms - round(ago_s * 1000)


def _gone_since(seen: Situation, name: str) -> int:
    """Since when a member is in no view, if a view with it is remembered."""
    views = seen.views
    last = max((i for i, one in enumerate(views) if name in one.members), default=len(views))
    return views[last + 1].at_ms if last + 1 < len(views) else 0
