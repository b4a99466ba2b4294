"""Requests of `qpid-cluster` about members and their clients: show, disconnect, send away, wait.

Each function asks any one member and returns text for people or documents for programs. A request
that could be lost on its way to another member is repeated until the answer shows that it was
carried out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from tools.cli.answers import items, objects
from tools.client.management import (
    ClusterStatus,
    Json,
    ManagementError,
    MemberStatus,
    Target,
    Unreachable,
    wait_for,
)

LOOK_S = 2.0
"""How long a member that should stop has for one answer."""


def connections(target: Target, of: str = "") -> list[dict[str, Json]]:
    """Return each running member, or the one named `of`, with its clients' `connections`."""
    status = target.status()
    members = running(status)
    if of and of not in [member.id for member in members]:
        raise not_running(status, of)
    found = connected(target)
    return [
        {
            "id": member.id, "url": member.url,
            "connections": [one for one in found if one.get("member") == member.id],
        }
        for member in members
        if of in ("", member.id)
    ]  # fmt: skip


def running(status: ClusterStatus) -> list[MemberStatus]:
    """Return the members that may have clients."""
    return [one for one in status.members if one.state != "DOWN" and not one.arbitrator]


def not_running(status: ClusterStatus, member_id: str) -> ManagementError:
    """Return what is wrong with the ID of a member that does not run."""
    if any((one.id, one.state) == (member_id, "DOWN") for one in status.members):
        return ManagementError(f"{member_id} is DOWN; qpidctl check_cluster says what to do")
    return ManagementError("No member with matching ID found")


def connected(target: Target) -> list[dict[str, Json]]:
    """Return the connections of all members."""
    found = target.ask(op="connections").get("connections")
    if not isinstance(found, list):
        raise ManagementError("the broker answered without a list of connections")
    return objects(found)


def client_lines(members: list[dict[str, Json]], *, numeric: bool) -> Iterator[str]:
    """The classic layout: a heading for each member, and `host:port` of each client."""
    for member in members:
        yield f"Clients on Member: ID={member['id']}:"
        for client in objects(member["connections"]):
            address = str(client.get("address", ""))
            yield f"    {address if numeric else with_name(address)}"
        yield ""


def with_name(address: str) -> str:
    """The address with its host's name, if it has one."""
    host, _, port = address.rpartition(":")
    return f"{_name_of(host)}:{port}"


@cache
def _name_of(host: str) -> str:
    try:
        return socket.gethostbyaddr(host)[0]
    except (OSError, UnicodeError):
        return host


def disconnect(target: Target, host: str, port: int) -> str:
    """Close the connection of a client; return its numeric address, or "" if there is none."""
    wanted = {f"{ip}:{port}" for ip in _addresses_of(host)}
    found = sorted(wanted & {str(one.get("address")) for one in connected(target)})
    if not found:
        return ""
    address = found[0]

    def is_gone() -> bool:
        return all(one.get("address") != address for one in connected(target))

    otherwise = f"the connection from {address} is still there"
    _until(target, is_gone, lambda: target.ask(op="disconnect", address=address), otherwise)
    return address


def rebalance(target: Target) -> dict[str, int]:
    """Close the newest connections of members that have more than their share.

    Returns how many were closed at each member. The clients choose where they connect next; none is
    closed if no member has more clients than another could take over.
    """
    status = target.status()
    away = items(status.raw.get("drained"))
    members = [member.id for member in running(status) if member.id not in away]
    found = connected(target)
    share = -(-len(found) // len(members)) if members else 0
    surplus: dict[str, set[str]] = {}
    for member in members:
        own = [one for one in found if one.get("member") == member]
        own.sort(key=lambda one: str(one.get("number")).zfill(20))
        surplus[member] = {str(one.get("address")) for one in own[share:]}

    def left() -> list[tuple[str, str]]:
        now = {(str(one.get("member")), str(one.get("address"))) for one in connected(target)}
        return [(name, at) for name, ats in surplus.items() for at in ats if (name, at) in now]

    def ask_all() -> None:
        for member, address in left():
            target.ask(op="disconnect", address=address, id=member)

    _until(target, lambda: not left(), ask_all, "some of the connections are still there")
    return {member: len(closed) for member, closed in surplus.items()}


def _addresses_of(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {host}
    return {host} | {str(info[4][0]) for info in found}


def drain(target: Target, member_id: str, *, on: bool, force: bool) -> None:
    """Make a member refuse clients, or accept them again; return when it reports so."""
    status = target.status()
    if member_id not in [member.id for member in running(status)]:
        raise not_running(status, member_id)

    def is_so() -> bool:
        drained = target.status().raw.get("drained")
        return isinstance(drained, list) and (member_id in drained) is on

    target.ask(op="drain", id=member_id, on=on, force=force)
    otherwise = f"{member_id} does not say that it is {'drained' if on else 'undrained'}"
    _until(
        target, is_so, lambda: target.ask(op="drain", id=member_id, on=on, force=True), otherwise
    )


def await_member(target: Target, member_id: str) -> None:
    """Wait until this member is ACTIVE by the view of the target, which must be ACTIVE itself.

    The target may still be starting.
    """

    def is_active() -> bool:
        try:
            status = target.status()
        except ManagementError:
            return False
        return status.status == "ACTIVE" and any(
            member.id == member_id and member.state == "ACTIVE" for member in status.members
        )

    _until(target, is_active, lambda: None, f"{member_id} is not ACTIVE; see qpid-cluster")


def await_end(members: Mapping[str, Target], timeout_s: float | None) -> None:
    """Wait until each of these processes stops or cannot be reached."""
    running = dict(members)
    doing: dict[str, str] = {}

    def ended() -> bool | None:
        for name, member in members.items():
            if name in running:
                doing[name] = _doing(member)
                if not doing[name]:
                    del running[name]
        return not running or None

    def sentence() -> str:
        left = "; ".join(f"{name}: {doing[name]}" for name in running)
        return f"still running: {left}; end the process there before the cluster is started again"

    wait_for(ended, timeout_s, sentence)


def _doing(member: Target) -> str:
    """What a process still does; empty: it stops, or nothing can be reached there."""
    patience_s = LOOK_S if member.timeout_seconds is None else min(LOOK_S, member.timeout_seconds)
    try:
        state = replace(member, timeout_seconds=patience_s).status().raw.get("member_state")
    except Unreachable:
        return ""
    except ManagementError as problem:
        return str(problem)
    return "" if state == "LEFT" else f"it is {state}"


def _until(
    target: Target, true_now: Callable[[], bool], ask: Callable[[], object], otherwise: str
) -> None:
    """Ask repeatedly until it is true; otherwise ManagementError with `otherwise`."""
    wait_for(lambda: true_now() or None, target.timeout_seconds, lambda: otherwise, ask)
