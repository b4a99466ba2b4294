"""Alarms: a member that runs out of disk or memory makes all members stop taking publishes.

An alarm is a command of the member that measured it, so all members block and unblock publishers at
the same position: identical replicas fill identical disks, and a member that continued alone would
fill those of the others. An alarm ends when its member says so, or with its member's session.
Decision: docs/decisions/0022-alarms-are-ordered.md.
"""

from broker.machine.commands import IGNORED, OK, Alarm
from broker.machine.digest import item_hash
from broker.machine.state import State

DISK, MEMORY, FULL = "disk", "memory", "full"
"""Free space is below the limit; memory is above it; a write found no space at all."""
WORDS = {DISK: "low on disk", MEMORY: "low on memory", FULL: "disk full"}
DETAIL_MAX = 200


def alarm_element(name: str, subject: str, detail: str) -> int:
    return item_hash("alarm", name, subject, detail)


def on_alarm(state: State, session: int, command: Alarm) -> int:
    """Set or end an alarm. The session identifies the sender, so nobody can speak for another."""
    _, subject, on, detail = command
    name = next((n for n, record in state.sessions.items() if record.session == session), None)
    if name is None or subject not in WORDS or len(detail) > DETAIL_MAX:
        return IGNORED
    before = state.alarms.get((name, subject))
    if before == (detail if on else None):
        return IGNORED
    if before is not None:
        _drop(state, (name, subject))
    if on:
        state.alarms[name, subject] = detail
        state.add(alarm_element(name, subject, detail))
    return OK


def forget_alarms(state: State, name: str) -> None:
    """Forget a member's alarms, because its session ends."""
    for key in [key for key in state.alarms if key[0] == name]:
        _drop(state, key)


def _drop(state: State, key: tuple[str, str]) -> None:
    state.remove(alarm_element(*key, state.alarms.pop(key)))


def sentence(state: State) -> str:
    """The first alarm, for a client or an operator, and the number of further ones."""
    (name, subject), detail = next(iter(state.alarms.items()))
    more = f", and {len(state.alarms) - 1} more" if len(state.alarms) > 1 else ""
    return f"{WORDS[subject]}: {detail or 'no detail'} at {name}{more}"
