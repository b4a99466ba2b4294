"""Sessions of members: activations, blobs in sequence, ticks, voters, and the active member.

A session is a time in which a member's state carries over from view to view. When it ends, all of
its connections are closed at this position, or at the next ones if they are many, and everything it
still sends is rejected. All members do so alike, because it depends on replicated state alone.
Decision: docs/decisions/0015-origins-have-incarnations-and-sessions.md.

At most one member is the *active* one (active-passive mode). It takes the role, and gives it up, by
a command of its own session, so that no other member speaks for it; it loses the role with that
session. The members' shells, or an operator, decide which member takes it
(broker/roles/active_passive.py).
Decision: docs/decisions/0066-the-active-member-is-ordered.md.
"""

import sys

from broker.machine.clock import horizons
from broker.machine.clock.cluster_time import (
    AHEAD_US_MAX,
    due_us,
    forget_clock,
    goes_on,
    lease_end,
    read_clock,
    recheck_deadlines,
)
from broker.machine.commands import (
    IGNORED,
    OK,
    Activate,
    Demote,
    DigestClaim,
    Promote,
    Reexecuted,
    Shutdown,
    Tick,
    Upgrade,
    Voters,
)
from broker.machine.digest import item_hash
from broker.machine.effects import SessionStarted
from broker.machine.handlers.alarms import forget_alarms
from broker.machine.handlers.cold_start import forget_volatile
from broker.machine.handlers.connections import end_connections, end_later, end_some_channels
from broker.machine.handlers.definitions import define_first
from broker.machine.handlers.poison import forget_poison
from broker.machine.handlers.publish import publish_due
from broker.machine.limits import (
    ENDING_WORK_MAX,
    EXPIRED_PER_QUEUE_MAX,
    EXPIRED_PER_TICK_MAX,
    EXPIRED_WORK,
    LEASES_WORK_MAX,
)
from broker.machine.move_log import CLOSED, MEMBER_LOST
from broker.machine.publishing.letters import send_kept_letters
from broker.machine.queueing.deletion import delete_queue, deletion_work
from broker.machine.queueing.queue_limits import expire
from broker.machine.queueing.windows import forget_what_ended
from broker.machine.state import SessionRecord, State
from broker.machine.version import MACHINE_VERSION

SESSIONS_PER_POSITION = 256


def session_element(name: str, record: SessionRecord) -> int:
    return item_hash("session", name, record.session, record.incarnation)


def cluster_element(state: State) -> int:
    """The scalars of the state, including the machine's time."""
    return item_hash(
        "cluster",
        state.epoch,
        state.version,
        state.voters,
        state.cluster_id,
        state.shutdown_id,
        state.now_us,
    )


def on_activate(state: State, session: int, command: Activate) -> int:
    """Begin an epoch.

    A session's id is the position of its activation and the member's place in it: unique, and
    rising over time. It replaces nothing while the member continues its current session.

    A shutdown stands through views of the run that it ended, so that members that join these end,
    too. A member that has restarted begins another run.
    """
    _, epoch, members, cold, voters, cluster_id, version = command
    if epoch <= state.epoch or len(members) > SESSIONS_PER_POSITION:
        return IGNORED
    begins_again = cold or any(
        name in state.sessions and state.sessions[name].incarnation != incarnation
        for name, incarnation, _ in members
    )
    continuing = {name: incarnation for name, incarnation, fresh in members if not fresh}
    ending = [
        name
        for name, record in state.sessions.items()
        if cold or continuing.get(name) != record.incarnation
    ]
    _end_sessions(state, ending)
    if cold:
        end_what_ended(state, at_once=True)  # nobody is served yet
        forget_volatile(state)
        forget_poison(state)
    if not state.epoch:
        define_first(state)
    state.remove(cluster_element(state))
    if not state.version:
        state.version = version
    state.epoch = epoch
    state.voters = voters
    state.cluster_id = cluster_id
    if begins_again:
        state.shutdown_id = ""
    state.add(cluster_element(state))
    for place, (name, incarnation, _) in enumerate(members):
        if name not in state.sessions:
            _start_session(state, name, incarnation, state.position * SESSIONS_PER_POSITION + place)
    return OK


def _start_session(state: State, name: str, incarnation: int, session: int) -> None:
    record = SessionRecord(session, incarnation, 0, item_hash("blob no", session))
    state.sessions[name] = record
    state.add(session_element(name, record))
    if name == state.local:
        state.local_session = session
        state.effects.append(SessionStarted(session))


def _end_sessions(state: State, names: list[str]) -> None:
    for name in names:
        record = state.sessions.pop(name)
        forget_clock(state, name)
        forget_alarms(state, name)
        if name == state.active:
            _set_active(state, "")
        state.remove(session_element(name, record) + record.salt * record.last_blob_no)
        if name == state.local:
            state.local_session = -1
    find_ended(state)


def find_ended(state: State) -> None:
    """Mark the connections without a session: they are sent nothing more, and end over the
    following positions."""
    live = {record.session: True for record in state.sessions.values()}
    for key, connection in state.connections.items():
        if key[0] not in live and not connection.ended:
            end_later(state, connection)


def end_what_ended(state: State, *, at_once: bool = False) -> None:
    """End such connections, as many as one position may cost, or all at once if asked. Nothing is
    delivered to them meanwhile, so the messages they hold may go back in parts."""
    work_max = sys.maxsize if at_once else ENDING_WORK_MAX
    live = {record.session: True for record in state.sessions.values()}
    work = 0
    while state.ending and work < work_max:
        connection = state.ending[0]
        what = CLOSED if connection.key[0] in live else MEMBER_LOST
        while connection.exclusive and work < work_max:
            queue = next(iter(connection.exclusive.values()))
            work += deletion_work(queue)
            delete_queue(state, queue)
        work += end_some_channels(state, connection, what, work_max - work)
        if connection.channels or connection.exclusive:
            return
        end_connections(state, [connection])
        state.ending.popleft()
        work += 8


def active_element(name: str) -> int:
    return item_hash("active", name)


def on_promote(state: State, session: int, command: Promote) -> int:
    name = next((n for n, record in state.sessions.items() if record.session == session), None)
    if name is None or state.active or not _is_of_this_epoch(state, command):
        return IGNORED
    _set_active(state, name)
    return OK


def on_demote(state: State, session: int, command: Demote) -> int:
    record = state.sessions.get(state.active)
    if record is None or record.session != session or not _is_of_this_epoch(state, command):
        return IGNORED
    _set_active(state, "")
    return OK


def _is_of_this_epoch(state: State, command: Promote | Demote) -> bool:
    return command[1] == state.epoch


def _set_active(state: State, name: str) -> None:
    if state.active:
        state.remove(active_element(state.active))
    state.active = name
    if name:
        state.add(active_element(name))


def accept_blob(state: State, member: str, session: int, blob_no: int) -> bool:
    """Accept only the next blob of a current session, whatever the ring repeats."""
    record = state.sessions.get(member)
    if record is None or record.session != session or blob_no != record.last_blob_no + 1:
        return False
    record.last_blob_no = blob_no
    state.add(record.salt)
    return True


def on_digest(_state: State, _session: int, _command: DigestClaim | Reexecuted) -> int:
    return OK


def on_tick(state: State, session: int, command: Tick) -> int:
    name = next((n for n, record in state.sessions.items() if record.session == session), None)
    _, reached_us, ahead_us, applied = command
    if name is None or min(reached_us, ahead_us, applied) < 0:
        return IGNORED
    if applied >= state.position:  # its sender cannot have applied that
        return IGNORED
    now_us = read_clock(state, name, reached_us, applied)
    moved = _move_time(state, now_us)
    # No stored claim may exceed the horizon: it would count for things created from here on.
    reached_us = max(state.clocks[name].reached_us, min(ahead_us, now_us + AHEAD_US_MAX))
    is_quiet = now_us < due_us(state) and not goes_on(state)
    horizons.advance(state, max(now_us, reached_us), is_quiet=is_quiet)
    if state.now_us >= due_us(state):
        _end_messages(state)
        _end_leases(state)
        forget_what_ended(state)
        send_kept_letters(state)
    return OK if moved else IGNORED


def _move_time(state: State, now_us: int) -> bool:
    """Move the machine's time; return whether work remains."""
    moved = now_us > state.now_us
    if moved:
        state.remove(cluster_element(state))
        state.now_us = now_us
        state.add(cluster_element(state))
    return moved


def _end_messages(state: State) -> None:
    """End the messages that expired, or are due at an exchange that delays, in queues whose time
    has come. A queue with more than its share due has its next turn after the others."""
    budget, share = EXPIRED_PER_TICK_MAX, EXPIRED_PER_QUEUE_MAX
    while budget > 0:
        number = state.expiry.take(state.now_us)
        if number is None:
            return
        queue = state.expiring.get(number)
        if queue is not None:
            if queue.delays is None:
                budget -= expire(state, queue, min(share, budget))
            else:
                work = publish_due(state, queue, EXPIRED_WORK * min(share, budget))
                budget -= work // EXPIRED_WORK
            state.expiry.forget(number)
            recheck_deadlines(state, queue)
        budget -= 1


def _end_leases(state: State) -> None:
    """Delete unused queues whose time has come."""
    work = 0
    while work < LEASES_WORK_MAX:
        number = state.lease_ends.take(state.now_us)
        if number is None:
            return
        queue = state.leased.get(number)
        work += 1
        if queue is not None and lease_end(queue) > state.now_us:
            state.lease_ends.note(number, lease_end(queue))
        elif queue is not None:
            work += deletion_work(queue)
            delete_queue(state, queue)


def on_voters(state: State, _session: int, command: Voters) -> int:
    """Change the voters. If two operators do so at once, `before` is wrong for the second."""
    _, before, after = command
    if before != state.voters or not after:
        return IGNORED
    state.remove(cluster_element(state))
    state.voters = after
    state.add(cluster_element(state))
    return OK


def on_upgrade(state: State, _session: int, command: Upgrade) -> int:
    """Raise the version. It is never lowered: results computed since would not be understood. And
    only in the epoch whose members the origin asked for their versions."""
    _, epoch, version = command
    if epoch != state.epoch or version <= state.version:
        return IGNORED
    assert version <= MACHINE_VERSION, "no member of an epoch orders what another cannot execute"
    state.remove(cluster_element(state))
    state.version = version
    state.add(cluster_element(state))
    return OK


def on_shutdown(state: State, session: int, command: Shutdown) -> int:
    state.remove(cluster_element(state))
    state.shutdown_id = command[1]
    state.add(cluster_element(state))
    return OK
