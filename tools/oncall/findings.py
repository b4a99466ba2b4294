"""What needs looking after in a cluster: each finding says what, what follows, and what to do.

A finding is `critical` where clients are not served now, a `warning` where the next fault would do
that or something waits for an operator, a `notice` where somebody may want to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

from tools.client.http_api import Json, Object
from tools.oncall.answers import Answers, members, objects
from vsync.types import record

CRITICAL, WARNING, NOTICE = "critical", "warning", "notice"
LEVELS = (CRITICAL, WARNING, NOTICE)
UNSTEADY_MS, UNSTEADY_VIEWS = 600_000, 4
"""More changes of the view in this time are too many, as in conf/prometheus/alerts.yml."""
NAMED_MAX = 5
"""So many queues are named in one finding."""


@record
class Finding:
    """One thing that needs looking after."""

    level: str
    what: str
    follows: str
    do: str
    chapter: str
    """A page of docs/operations, and the chapter in it."""


def findings(found: Answers) -> list[Finding]:
    """All that can be told from the answers, the gravest first."""
    listed = [one for look in LOOKS for one in look(found)]
    return sorted(listed, key=lambda one: LEVELS.index(one.level))


def _not_serving(found: Answers) -> Iterator[Finding]:
    cluster = found.cluster
    status, name = str(cluster.get("status")), _local(cluster)
    why, _, advice = str(cluster.get("reason") or "it does not say why").partition(". ")
    if name in _halted(found) or status == "ACTIVE":
        return
    if status == "WAITING":
        yield Finding(
            CRITICAL, f"{name} waits for the first start of its cluster: {why}",
            "It serves nobody until all of --cluster-size are there, this one time.",
            "Start the others. If they run: do --cluster-name and --cluster-nodes name each "
            "other's --cluster-bind, and does a firewall let these ports through?",
            "quorum.md#what-a-start-decides",
        )  # fmt: skip
    elif status == "INQUORATE":
        yield Finding(
            CRITICAL, f"{name} serves nobody: {why}",
            "Nothing is confirmed here. What was confirmed is on the disks of a majority.",
            advice or "Start the members that are missing; it goes on by itself then. If they run, "
            "look at the network between them.",
            "quorum.md#who-votes",
        )  # fmt: skip
    else:
        yield Finding(
            CRITICAL, f"{name} does not serve yet: {why}",
            "It gets what it missed from the others, or waits for a view to stand.",
            f"Wait: qpid-cluster -t 600 --await {name} ANOTHER-MEMBER. Its log shows the progress.",
            "watching.md#states-of-a-member",
        )  # fmt: skip


def _down(found: Answers) -> Iterator[Finding]:
    cluster = found.cluster
    if cluster.get("status") != "ACTIVE":
        return
    votes = cluster.get("quorum")
    spare = _number(votes, "total_votes") - _number(votes, "quorum")
    for one in members(cluster):
        if one.get("state") != "DOWN":
            continue
        name = str(one.get("id"))
        yield Finding(
            WARNING, f"{name} is down{_since(cluster, name)}",
            "The others go on. "
            + ("The next member that is lost stops the cluster." if spare < 1 else
               f"They can lose {spare} more vote{'s' * (spare > 1)}."),
            "Does its process run? If not, the last lines of its log, or its exit code, say why it "
            "ended: start it with its old --data-dir. If the machine is gone for good: "
            f"qpid-cluster --replace-voter {name} NEW",
            "start-and-stop.md",
        )  # fmt: skip


def _joining(found: Answers) -> Iterator[Finding]:
    for one in members(found.cluster):
        if one.get("state") == "JOINING" and not one.get("local"):
            share = one.get("received_percent")
            yield Finding(
                NOTICE, f"{one.get('id')} joins" + (f", {share:g} %" if _is_number(share) else ""),
                "It serves nobody until it has what it missed.",
                f"Wait: qpid-cluster -t 600 --await {one.get('id')}",
                "start-and-stop.md",
            )  # fmt: skip


def _faulty(found: Answers) -> Iterator[Finding]:
    for name in _halted(found):
        yield Finding(
            CRITICAL, f"{name} found a fault of its own and serves nobody"
            + (f": {found.cluster.get('reason')}" if name == _local(found.cluster) else ""),
            "Its state differs from the majority's; the others go on.",
            "Keep a copy of its data directory, then restart it: it takes the state of the others.",
            "failures.md#a-faulty-member",
        )  # fmt: skip


def _alarms(found: Answers) -> Iterator[Finding]:
    alarms = found.cluster.get("alarms")
    for alarm in alarms if isinstance(alarms, list) else []:
        text = str(alarm)
        for begins, level, follows, do, chapter in ALARMS:
            if begins in text:
                yield Finding(level, text, follows, do, chapter)
                break
        else:
            yield Finding(
                WARNING, text, "", "The log of that member says more.", "commands.md#qpid-cluster"
            )


_BLOCKED = "Publishers wait at all members; consumers, acks and purges go on."
_RESOURCES = "capacity.md#disk-or-memory-is-full"
ALARMS = (
    ("low on disk", CRITICAL, _BLOCKED,
     "Free space on the disk of that member, or consume, or purge: qpidctl purge_queue NAME. "
     "Publishers go on by themselves.", _RESOURCES),
    ("low on memory", CRITICAL, _BLOCKED,
     "See below which queues are long; consume or purge them, or give the member a higher "
     "memory-limit: in the file of its --config, then SIGHUP; one that was started without a file, "
     "or with --memory-limit, is restarted with the new one.", _RESOURCES),
    ("disk full", CRITICAL, _BLOCKED,
     "Free space on that disk. Nothing that was confirmed is lost.", _RESOURCES),
    ("the disk lags", WARNING, "The whole cluster is slowed down for that disk.",
     "Look what else writes there (iostat -x 1). A member that lags too long leaves by itself, "
     "with code 74.", "failures.md#a-slow-machine-or-disk"),
    ("the clock of", WARNING, "It goes on, but could not join again with this clock.",
     "Set the clock of that machine right: chronyc tracking, timedatectl.",
     "failures.md#exit-codes"),
)  # fmt: skip
"""By the words of an alarm: what follows, and what to do."""


def _drained(found: Answers) -> Iterator[Finding]:
    drained = found.cluster.get("drained")
    for name in drained if isinstance(drained, list) else []:
        yield Finding(
            WARNING, f"{name} is drained: it lets no client in",
            "It votes and replicates like the others.",
            f"When its maintenance is over: qpid-cluster --undrain {name}",
            "maintenance.md",
        )  # fmt: skip


def _links_down(found: Answers) -> Iterator[Finding]:
    down = found.cluster.get("links_down")
    for link in down if isinstance(down, list) else []:
        yield Finding(
            WARNING, f"the link to {link} is down", "Its member is reached over the other network.",
            "Repair that network: the next loss cuts the member off.", "quorum.md#two-networks",
        )  # fmt: skip


def _unsteady(found: Answers) -> Iterator[Finding]:
    since = found.now_ms - UNSTEADY_MS
    views = objects(found.cluster.get("views"))
    changes = [
        (before, after) for before, after in pairwise(views)
        if before.get("primary") and _number(after, "at_ms") > since
    ]  # fmt: skip
    if len(changes) <= UNSTEADY_VIEWS:
        return
    gone = Counter(name for before, after in changes for name in _names(before) - _names(after))
    who = ", ".join(f"{name} ({times})" for name, times in gone.most_common(3))
    what = f"{len(changes)} changes of the view in ten minutes"
    yield Finding(
        WARNING, f"{what}; out: {who}" if who else what,
        "Each is a short pause for all clients.",
        "The logs of the others say why it was out (silent, refuses connections, gave it up), its "
        "own whether it was late itself (this process came N ms late).",
        "failures.md#why-a-member-is-out",
    )  # fmt: skip


def _roles(found: Answers) -> Iterator[Finding]:
    ha = found.cluster.get("ha")
    listed = objects(ha.get("members")) if isinstance(ha, dict) else []
    if listed and not any(one.get("status") in ("active", "recovering") for one in listed):
        yield Finding(
            CRITICAL, "no member of this active-passive cluster is active",
            "Clients are refused everywhere.",
            "qpid-ha status --all; with --ha-promotion manual: qpid-ha -b MEMBER promote",
            "active-passive.md",
        )  # fmt: skip
    for name in _marked(found, "pair_alone"):
        yield Finding(
            WARNING, f"{name} has gone on alone", "There is one copy of what is confirmed now.",
            "Start the other one with its old --data-dir.", "pairs.md#two-members-hac",
        )  # fmt: skip


def _versions(found: Answers) -> Iterator[Finding]:
    in_force, possible = (
        _number(found.cluster, key) for key in ("machine_version", "machine_version_possible")
    )
    if possible > in_force and found.cluster.get("status") == "ACTIVE":
        yield Finding(
            NOTICE, f"version {in_force} of the machine is in force, all members can do {possible}",
            "What is new since then is refused or without effect.",
            "When no member shall go back to the older release: qpid-cluster --upgrade",
            "maintenance.md#upgrading",
        )  # fmt: skip


def _certificate(found: Answers) -> Iterator[Finding]:
    if found.certificate:
        over = found.certificate.startswith("0 ")
        when = "has ended" if over else f"ends within {found.certificate}"
        yield Finding(
            CRITICAL if over else WARNING, f"the certificate of {_local(found.cluster)} {when}",
            "Clients that verify it cannot connect" + (" now." if over else " then."),
            "Write the new files in place of the old, then kill -HUP the broker; every member has "
            "its own.",
            "security.md#tls-for-clients",
        )  # fmt: skip


def _queues(found: Answers) -> Iterator[Finding]:
    untaken, stuck, dead = list[Object](), list[Object](), list[Object]()
    for queue in found.queues:
        ready, held = _number(queue, "messages_ready"), _number(queue, "messages_unacknowledged")
        consumers = _number(queue, "consumers") - _number(queue, "browsers")
        if _number(queue, "messages_dlx"):
            dead.append(queue)
        if queue.get("type") == "stream" or not ready:
            continue
        if consumers < 1:
            untaken.append(queue)
        elif held and not any(_rate(queue, of) for of in ("ack", "deliver_get")):
            stuck.append(queue)
    if dead:
        yield Finding(
            WARNING, f"dead letters that cannot go: {_listed(dead, 'messages_dlx')}",
            "They wait, and count in the length of their queue.",
            "Is the dead-letter exchange there, is a queue bound, is that one full?",
            "queues.md#dead-letters-that-wait",
        )  # fmt: skip
    if stuck:
        yield Finding(
            WARNING, "consumers hold messages and settled none for a minute: "
            + _listed(stuck, "messages_unacknowledged"),
            "What waits behind these is not delivered.",
            "qpidctl list_consumers shows whose they are. Look at that program, or close its "
            "connection: qpidctl close_connection PID REASON puts back what it holds.",
            "commands.md#qpidctl-and-qpid-stat",
        )  # fmt: skip
    if untaken:
        yield Finding(
            NOTICE, f"messages wait and nobody consumes: {_listed(untaken, 'messages_ready')}",
            "They stay until somebody does, or a limit drops them.",
            "Start the consumers; bound what may wait by a policy (max-length, message-ttl).",
            "queues.md#policies",
        )  # fmt: skip


def _movers(found: Answers) -> Iterator[Finding]:
    for rows, what, command in (
        (found.shovels, "shovel", "qpidctl shovel_status"),
        (found.links, "federation link", "qpidctl federation_status"),
    ):
        for row in rows:
            bad = row.get("state", row.get("status"))
            if bad in ("terminated", "error"):
                name = row.get("name") or row.get("id") or row.get("exchange") or row.get("queue")
                why = row.get("reason") or row.get("error") or "it does not say why"
                yield Finding(
                    WARNING, f"{what} {name} is {bad}: {why}",
                    "What it should move waits; it is tried again by itself.",
                    f"Put right what it says; {command} shows the state.",
                    "shovels.md#shovels" if what == "shovel" else "federation.md#federation",
                )  # fmt: skip


def _unasked(found: Answers) -> Iterator[Finding]:
    for one in found.unasked:
        yield Finding(
            NOTICE, f"not looked at: {one}", "", "Ask another member, or as an administrator.",
            "commands.md#qpidctl-and-qpid-stat",
        )  # fmt: skip


LOOKS: tuple[Callable[[Answers], Iterator[Finding]], ...] = (
    _not_serving, _faulty, _roles, _alarms, _certificate, _down, _unsteady, _links_down, _drained,
    _queues, _movers, _joining, _versions, _unasked,
)  # fmt: skip
"""In the order in which an operator wants to read them."""


def _local(cluster: Object) -> str:
    return next((str(one.get("id")) for one in members(cluster) if one.get("local")), "the member")


def _halted(found: Answers) -> list[str]:
    return _marked(found, "quorum_halted")


def _marked(found: Answers, figure: str) -> list[str]:
    """The members whose own figure is not 0."""
    return [str(one.get("name")) for one in found.nodes if _number(one.get("qpidd"), figure)]


def _since(cluster: Object, name: str) -> str:
    """Since when a member is in no view, where one with it is remembered."""
    views = objects(cluster.get("views"))
    last = max((i for i, one in enumerate(views) if name in _names(one)), default=len(views))
    if last + 1 >= len(views):
        return ""
    at = datetime.fromtimestamp(_number(views[last + 1], "at_ms") / 1000, UTC)
    return f" since {at:%Y-%m-%d %H:%M:%S} UTC"


def _names(view: Object) -> set[str]:
    found = view.get("members")
    return {str(name) for name in found} if isinstance(found, list) else set()


def _listed(queues: list[Object], field: str) -> str:
    """Their names and a number of each."""
    names = [f"{one.get('vhost')} {one.get('name')} ({_number(one, field)})" for one in queues]
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _rate(queue: Object, of: str) -> float:
    stats = queue.get("message_stats")
    details = stats.get(f"{of}_details") if isinstance(stats, dict) else None
    rate = details.get("avg_rate") if isinstance(details, dict) else None
    return float(rate) if isinstance(rate, int | float) else 0.0


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float)


def _number(row: Json, field: str) -> int:
    value = row.get(field) if isinstance(row, dict) else None
    return int(value) if isinstance(value, int | float) else 0
