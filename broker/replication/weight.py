"""Estimates, at a command's origin and from the current state, the cost of applying the command and
whether anybody waits for it.

An origin packs its commands into blobs by this estimate, so that an ordered item, which is applied
in one go, stays short, and the work on the ring at a time stays limited. An estimate may be wrong,
because the state at the command's position differs: that makes one item long, nothing else. The
bounds of the machine (`broker.machine.limits`) hold in any case.

An ack gets no reply. It may only make room for more deliveries: where none waits for that, the
ring's token need not come for it at once.
Decision: docs/decisions/0080-the-token-moves-for-a-reason.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from broker.machine import commands as c
from broker.machine.commands import Command, TxCommit
from broker.machine.limits import (
    CHANNEL_HELD_MAX,
    FANOUT_MAX,
    KEY_WORK,
    POLICY_WORK,
    ROUTE_WORK_MAX,
    WORDS_PER_UNIT,
)
from broker.machine.machine import Machine
from broker.machine.publishing.copies import Copies, copies_of, may_name_copies
from broker.machine.queueing.bindings import leads_to
from broker.machine.requests.exchange_types import CHOOSING
from broker.machine.state import Channel, Exchange, Vhost, ready_count

LOOKED_AT_MAX = 8
"""With more commands in one item the ring is busy, and examining them costs more than it gains."""


def is_urgent(machine: Machine, session: int, commands: Sequence[Command]) -> bool:
    """Whether anybody waits for one of these, so that the token should not rest meanwhile."""
    if len(commands) > LOOKED_AT_MAX:
        return True
    for command in commands:  # noqa: SIM110, nearly always one: a generator costs more
        if _is_awaited(machine, session, command):
            return True
    return False


def _is_awaited(machine: Machine, session: int, command: Command) -> bool:
    kind = command[0]
    if kind == c.DIGEST:
        return False
    if kind != c.ACK:
        return True
    ack = cast("c.Ack", command)
    channel = machine.channels.get((session, ack.conn, ack.chan))
    if channel is None or len(channel.consumers) != 1 or channel.outstanding >= channel.limit:
        return True
    consumer = next(iter(channel.consumers.values()))
    return consumer.outstanding >= consumer.limit or ready_count(consumer.queue) > 0


def weight(machine: Machine, session: int, command: Command) -> int:
    """Return the units of work (`limits`) beyond the one that every command takes."""
    kind = command[0]
    if kind == c.CONNECTION_CLOSE:
        connection = machine.connections.get((session, cast("int", command[1])))
        channels = connection.channels.values() if connection is not None else ()
        queues = connection.exclusive.values() if connection is not None else ()
        held = sum([_held(channel) + len(channel.consumers) for channel in channels])
        return held + sum([len(queue.bindings) for queue in queues])
    estimate = _ON_CHANNEL.get(kind)
    if estimate is None:
        return 0
    # All these kinds have the connection and the channel in their second and third item.
    key = (session, command[1], command[2])  # type: ignore[misc]
    channel = machine.channels.get(key)  # type: ignore[arg-type]
    return estimate(channel, command) if channel is not None else 0


def _held(channel: Channel) -> int:
    return len(channel.unacked) + len(channel.unsent)


def _of_publish(channel: Channel, command: c.Publish) -> int:
    _, _, _, _, exchange, key, _, properties, _ = command
    return _reach_of_all(channel.connection.vhost, exchange, key, properties)


def _of_commit(channel: Channel, command: Command) -> int:
    _, _, _, publishes, settlements = cast("TxCommit", command)
    vhost = channel.connection.vhost
    reach = sum([_reach_of_all(vhost, name, key, props) for name, key, _, props, _ in publishes])
    return reach + (len(channel.unacked) if settlements else 0)


def _reach_of_all(vhost: Vhost, name: str, key: str, properties: bytes) -> int:
    """The same, by the message's key and the keys that its CC and BCC name."""
    if properties and properties[0] & 0x20 and may_name_copies(properties):  # it has headers
        copies = copies_of(properties)
        if isinstance(copies, Copies):
            keys = tuple(dict.fromkeys((key, *copies.keys, *copies.blind)))
            reach = _reach(vhost, (name, *keys)) + KEY_WORK * (len(keys) - 1)
            return min(reach, ROUTE_WORK_MAX + FANOUT_MAX)  # more is refused
    return _reach(vhost, (name, key))


def _reach(vhost: Vhost, at: tuple[str, ...]) -> int:
    """About how many queues beyond the first a message reaches, plus the work to find them; `at`:
    its exchange and its keys."""
    route = vhost.routes.get(at)
    if route is not None:
        return max(0, len(route.queues) - 1)
    name, *keys = at
    exchange = vhost.exchanges.get(name)
    if exchange is None or not exchange.bindings:
        return 0
    if exchange.routes_as == "direct":
        bindings = [one for key in keys for one in exchange.by_key.get(key, {}).values()]
        through = all(binding.to_queue for binding in bindings)
        return len(bindings) if through else FANOUT_MAX
    here = 1
    if exchange.routes_as not in CHOOSING:
        here = len(exchange.bindings) * sum([1 + key.count(".") // WORDS_PER_UNIT for key in keys])
    return here + _reach_behind(vhost, exchange, keys) if leads_to(exchange) else here


def _reach_behind(vhost: Vhost, exchange: Exchange, keys: list[str]) -> int:
    """The same for the exchanges that this one leads to. For an exchange that chooses by more than
    the key, the route of the next message is not known, either."""
    pending, seen, reach = [exchange], {exchange.name}, 0
    while pending and reach < FANOUT_MAX:
        for name in leads_to(pending.pop()):
            if name in seen:
                continue
            seen.add(name)
            target = vhost.exchanges[name]
            pending.append(target)
            if target.routes_as == "direct":
                reach += sum([len(target.by_key.get(key, {})) for key in keys])
            else:
                reach += 1 if target.routes_as in CHOOSING else len(target.bindings)
    return min(reach, FANOUT_MAX)


def _of_settlement(channel: Channel, command: Command) -> int:
    multiple = command[4]  # type: ignore[misc]  # of Ack and of Nack
    return len(channel.unacked) if multiple else 0


def _of_recover(channel: Channel, _command: Command) -> int:
    return len(channel.unacked)


def _of_close(channel: Channel, _command: Command) -> int:
    return _held(channel) + len(channel.consumers)


def _of_consume(channel: Channel, command: Command) -> int:
    queue = channel.connection.vhost.queues.get(cast("c.Consume", command)[3])
    ready = len(queue.ready) + len(queue.returned) if queue is not None else 0
    return min(ready, CHANNEL_HELD_MAX)


def _of_queue_declare(channel: Channel, command: Command) -> int:
    """A new queue is compared with all policies."""
    vhost = channel.connection.vhost
    exists = cast("c.QueueDeclare", command)[3] in vhost.queues
    return 0 if exists else POLICY_WORK * sum(map(len, vhost.policies))


def _of_queue_delete(channel: Channel, command: Command) -> int:
    queue = channel.connection.vhost.queues.get(cast("c.QueueDelete", command)[3])
    return len(queue.bindings) + len(queue.consumers) if queue is not None else 0


def _of_exchange_delete(channel: Channel, command: Command) -> int:
    exchange = channel.connection.vhost.exchanges.get(cast("c.ExchangeDelete", command)[3])
    return len(exchange.bindings) + len(exchange.inbound) if exchange is not None else 0


_Estimate = Callable[[Channel, Command], int]
_ON_CHANNEL: dict[int, _Estimate] = {
    c.PUBLISH: cast("_Estimate", _of_publish),
    c.TX_COMMIT: _of_commit,
    c.ACK: _of_settlement,
    c.NACK: _of_settlement,
    c.RECOVER: _of_recover,
    c.CHANNEL_CLOSE: _of_close,
    c.CONSUME: _of_consume,
    c.QUEUE_DECLARE: _of_queue_declare,
    c.QUEUE_DELETE: _of_queue_delete,
    c.EXCHANGE_DELETE: _of_exchange_delete,
}
