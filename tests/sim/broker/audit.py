"""Audit of a run: its surviving history is executed once more, under full observation.

All channels count as local, so every effect of every member appears; before each command it is
recorded which messages the command settles.  G11, G12 and G13 are judged on the whole, then each
client's memory is compared with it, and each confirmed message is looked up.
"""

from __future__ import annotations

from broker.machine.commands import (
    ACK,
    ACTIVATE,
    BODY_PART,
    CONNECTION_OPEN,
    DEFINE,
    IN_PARTS,
    NACK,
    OK,
    PUBLISH,
    REPEATED,
    SENT,
    UNROUTABLE,
    Command,
    Publish,
)
from broker.machine.effects import Confirm, DeliverEffect
from broker.machine.machine import Machine
from broker.machine.queueing.settlement import tags_up_to
from broker.machine.requests.properties import headers_of
from broker.machine.state import BODY, NUMBER, PROPERTIES, Held, all_queues
from broker.replication.chain import History
from broker.replication.replica import Replica
from tests.sim.broker.judge import BrokerJudge, ConfirmSent, DeliverySent, Node
from tests.sim.broker.operator import GRAVE
from tests.sim.clients.dealers import DealWitness
from tests.sim.clients.letters import MAIL, LetterWitness
from tests.sim.clients.messages import MessageId, message_id
from tests.sim.clients.moved import MoveWitness
from tests.sim.clients.programs import BROWSER, GROUP, GROUPED, KEY, LATE, LATEST
from tests.sim.clients.readers import STREAM
from tests.sim.clients.reading import StreamWitness

Copy = tuple[str, MessageId]  # a queue, and a message in it
Place = tuple[int, int, int, int]  # position, connection, channel, delivery tag
INVARIANTS_EVERY = 100


class Witness:
    """The observations from the execution of the surviving history."""

    def __init__(self, judge: BrokerJudge) -> None:
        self.judge = judge
        self.settled: dict[Copy, int] = {}  # position of the settlement
        self.rejected: set[Copy] = set()  # of these: they became dead letters
        self.delivered: dict[Copy, int] = {}  # position of the last delivery
        self.deliveries: dict[Place, DeliverEffect] = {}
        self.published: dict[int, int] = {}  # connection -> highest number applied
        self.taken: dict[MessageId, int] = {}
        self.entered: dict[MessageId, int] = {}
        self.repeated: dict[MessageId, set[int]] = {}  # where it was answered again
        self.unroutable: dict[MessageId, set[int]] = {}  # where it reached no queue
        self.colds: list[int] = []
        self.delayed: set[MessageId] = set()  # they arrive in another order
        self.replaced: set[MessageId] = set()  # by a newer one of its key
        self._latest: dict[object, MessageId] = {}  # by key
        # Who got the last message of each group that stays with its consumer.
        self._keepers: dict[object, tuple[int, int, int, str]] = {}
        self._firsts: dict[tuple[str, int], int] = {}
        self.stream = StreamWitness(judge.broken, self._count)
        self.letters = LetterWitness(judge.broken, self._count)
        self.moved = MoveWitness(judge.broken, self._count)
        self.deals = DealWitness(judge.broken, self._count, self.settled)
        self._parts: dict[tuple[object, ...], bytes] = {}  # of bodies, by connection and channel
        # By connection and tag of a browser: what it was shown, and the last of each publisher.
        self._seen: dict[tuple[int, str], dict[MessageId, int]] = {}

    def settles(self, machine: Machine, session: int, command: Command) -> list[Copy]:
        """The copies that this command removes for good."""
        kind = command[0]
        held: list[Held] = []
        if kind in (ACK, NACK, SENT):
            channel = machine.channels.get((session, command[1], command[2]))  # type: ignore[misc, arg-type]
            if channel is None:
                return []
            if kind == SENT:
                held = [h for tag, h in channel.unsent.items() if tag <= command[3]]  # type: ignore[misc, operator]
            elif kind == ACK or not command[5]:  # type: ignore[misc]
                tags = tags_up_to(channel, command[3], command[4])  # type: ignore[misc, arg-type]
                held = [channel.unacked[tag] for tag in tags or []]
        return [
            (queue.name, message_id(message[BODY]))
            for queue, _, message, _, _ in held
            if message[NUMBER]  # otherwise it was read, and is still there
        ]

    def whole(self, command: Command) -> Command:
        """A publish with its whole body, parts of which may have come before."""
        kind, where = command[0], command[1:3]
        if kind == BODY_PART:
            self._parts[where] = self._parts.get(where, b"") + command[3]  # type: ignore[misc, operator]
            self._count("body_parts")
        elif kind == PUBLISH and command[6] & IN_PARTS:  # type: ignore[misc, operator]
            body = self._parts.pop(where, b"") + command[8]  # type: ignore[misc, operator]
            return Publish(*command[:8], body)  # type: ignore[call-arg]
        return command

    def applied(
        self, machine: Machine, position: int, session: int, command: Command, outcome: int,
        moves: list[bytes],
    ) -> None:  # fmt: skip
        kind = command[0]
        if self.moved.arrives(machine, position, command, outcome, moves):
            pass
        elif kind == CONNECTION_OPEN:
            connection = machine.connections.get((session, command[1]))  # type: ignore[arg-type]
            if connection is not None:
                connection.local = True
                self.moved.opens(command[1], connection.peer)
        elif kind == PUBLISH and outcome in (OK, UNROUTABLE):
            conn, number = message_id(command[8])  # type: ignore[misc, arg-type]
            if number <= self.published.get(conn, 0):
                # A cold start forgets the number with the messages, even of one that reached no
                # queue.
                if not self.colds or self.taken[conn, number] > self.colds[-1]:
                    self._broken("G23", f"publish {conn}.{number} at {position} is taken again")
            elif number != self.published.get(conn, 0) + 1:
                self._broken("G5", f"publish {conn}.{number} at {position} is out of turn")
            self.published[conn] = max(number, self.published.get(conn, 0))
            self.taken[conn, number] = position
            if command[4] == LATE:  # type: ignore[misc]
                self.delayed.add((conn, number))
            if outcome == OK and command[5] == LATEST and not _is_refused(machine, command):  # type: ignore[misc]
                self._replace(headers_of(command[7])[KEY], (conn, number))  # type: ignore[misc, arg-type]
            if outcome == OK:
                self.entered[conn, number] = position
                self.moved.enters(machine, command, moves)
            else:
                self.unroutable.setdefault((conn, number), set()).add(position)
        elif kind == PUBLISH and outcome == REPEATED:
            self.judge.counters["sent_again"] += 1
            self.repeated.setdefault(message_id(command[8]), set()).add(position)  # type: ignore[misc, arg-type]
        elif kind == DEFINE and outcome == OK:
            self.judge.counters["policies"] += 1
        elif kind == ACTIVATE and command[3]:  # type: ignore[misc]
            self.colds.append(position)
            self.moved.cold_start(position)
        self.stream.applied(machine, position, command, outcome)
        self.letters.applied(machine, position, command, moves)
        self.deals.applied(machine, position, command, outcome)
        for effect in machine.effects:
            if not isinstance(effect, DeliverEffect):
                continue
            if effect.consumer_tag.startswith(BROWSER):
                self._browsed(machine, position, effect)
                continue
            self.moved.taken(effect)
            self._delivery(position, effect)
            if effect.consumer_tag.startswith(f"{GROUPED}/"):
                self._of_group(machine, position, effect)

    def _replace(self, key: object, message: MessageId) -> None:
        older = self._latest.get(key)
        if older is not None:
            self.replaced.add(older)
        self._latest[key] = message

    def _browsed(self, machine: Machine, position: int, d: DeliverEffect) -> None:
        """G29: each message is there, and is sent once to each browser, in order of each
        publisher."""
        name = d.consumer_tag.removeprefix(BROWSER).partition("/")[0]
        self.deliveries[position, d.conn, d.chan, d.delivery_tag] = d
        self.judge.counters["browsed"] += 1
        conn, number = message = message_id(d.body)
        queue = machine.vhosts["/"].queues[name]
        waiting = [message_id(one[BODY]) for one in (*queue.returned.values(), *queue.ready)]
        if message not in waiting:
            self._broken("G29", f"{message} is shown at {position}, and does not wait in {name}")
        seen = self._seen.setdefault((d.conn, d.consumer_tag), {})
        again = message in seen or d.redelivered
        if again or (message not in self.delayed and number <= seen.get((conn, 0), 0)):
            self._broken("G29", f"{d.consumer_tag} is shown {message} at {position} after {seen}")
        seen[message] = number
        if message not in self.delayed:
            seen[conn, 0] = number

    def entered_at(self, copy: Copy) -> int:
        """The position at which the queue took it: one that was moved or sent again is another
        message there."""
        queue, message = copy
        if queue == MAIL:
            return self.letters.arrived[message]
        return self.moved.arrived.get(copy) or self.entered[message]

    def _of_group(self, machine: Machine, position: int, d: DeliverEffect) -> None:
        """G32: one consumer holds messages of a group.  G34: the group stays with it."""
        self.judge.counters["of_groups"] += 1
        group = headers_of(d.properties)[GROUP]
        queue = machine.vhosts["/"].queues[GROUPED]
        holders = {
            (key, consumer.tag if consumer is not None and consumer.active else "")
            for key, channel in machine.channels.items()
            for of, _, message, consumer, _ in (*channel.unacked.values(), *channel.unsent.values())
            if of is queue and message[NUMBER] and headers_of(message[PROPERTIES])[GROUP] == group
        }
        if len(holders) > 1:
            self._broken("G32", f"group {group!r} is held by {sorted(holders)} at {position}")
        if queue.groups is None or not queue.groups.keeps:
            return
        self.judge.counters["of_kept_groups"] += 1
        (taker,) = [one for one in queue.consumers if one[1:] == (d.conn, d.chan, d.consumer_tag)]
        keeper = self._keepers.get(group)
        if keeper not in (None, taker) and keeper in queue.consumers:
            self._broken("G34", f"group {group!r} leaves {keeper} for {taker} at {position}")
        self._keepers[group] = taker

    def _delivery(self, position: int, d: DeliverEffect) -> None:
        queue = d.consumer_tag.partition("/")[0]
        message = message_id(d.body)
        copy = (queue, message)
        self.deliveries[position, d.conn, d.chan, d.delivery_tag] = d
        if queue == STREAM:
            self.stream.read(position, d)
            return
        if copy in self.moved.twice:
            return  # each is a message of its own
        if copy in self.settled:
            text = f"{copy} settled at {self.settled[copy]} is delivered at {position}"
            self._broken("G11", text)
        if copy in self.delivered:
            if not d.redelivered:
                self._broken("G11", f"{copy} delivered again at {position} without the flag")
        elif d.redelivered and not self.colds:
            self._broken("G11", f"{copy} first delivered at {position} with the flag")
        elif not d.redelivered and (queue == MAIL or copy in self.moved.arrived):
            pass  # its place follows the order of the deaths (G31) or of the moves (G24)
        elif not d.redelivered and message in self.delayed:
            self.judge.counters["delivered_late"] += 1
        elif not d.redelivered:
            # In a queue with groups (G32) the first deliveries of each group are in order.
            group = f"/{headers_of(d.properties)[GROUP]!r}" if queue == GROUPED else ""
            stream = (queue + group, message[0])
            if message[1] <= self._firsts.get(stream, 0):
                self._broken("G12", f"{copy} at {position} after {self._firsts[stream]}")
            self._firsts[stream] = message[1]
        self.delivered[copy] = position

    def check_holders(self, machine: Machine) -> None:
        """G13, and the invariants of the machine."""
        machine.invariants()
        held: dict[Copy, tuple[int, int, int]] = {}
        for key, channel in machine.channels.items():
            for queue, _, message, *_ in (*channel.unacked.values(), *channel.unsent.values()):
                if not message[NUMBER]:
                    continue  # any number of readers hold its place
                copy = (queue.name, message_id(message[BODY]))
                if copy in held and copy not in self.moved.twice:
                    self._broken("G13", f"{copy} is held by {held[copy]} and {key}")
                held[copy] = key

    def _count(self, what: str) -> None:
        self.judge.counters[what] += 1

    def _broken(self, promise: str, text: str) -> None:
        self.judge.broken(promise, text)


class WatchedMachine(Machine):
    """A machine of no member that reports the results of every command to a witness."""

    __slots__ = ("witness",)

    def __init__(self, witness: Witness) -> None:
        super().__init__("")
        self.witness = witness

    def apply(self, position: int, session: int, time_us: int, command: Command) -> int:
        leaving = self.witness.settles(self, session, command)
        before = len(self.moves)
        outcome = super().apply(position, session, time_us, command)
        if outcome == OK:
            for copy in leaving:
                self.witness.settled[copy] = position
                self.witness.moved.leaves(self, copy, position)
                if command[0] == NACK:
                    self.witness.rejected.add(copy)
        whole = self.witness.whole(command)
        self.witness.applied(self, position, session, whole, outcome, self.moves[before:])
        return outcome


def audit(judge: BrokerJudge, tip: bytes) -> tuple[Witness, Machine]:
    """Run the history of `tip` from its beginning, and compare it with the live observations."""
    path = list(judge.path(tip))
    path.reverse()
    witness = Witness(judge)
    machine = WatchedMachine(witness)
    replica = Replica("", machine, History(), in_runs=False)  # each command is watched
    for count, node in enumerate(path):
        replica.apply(node.item)
        replica.cut()
        replica.effects.clear()
        replica.digests.clear()
        if replica.history.chain != node.chain or machine.root() != node.root:
            judge.broken("G14", f"running {node.position} again gives {replica.history}")
            break
        if count % INVARIANTS_EVERY == 0:
            witness.check_holders(machine)
    witness.check_holders(machine)
    _compare_deliveries(judge, path, witness)
    _look_for_confirmed(judge, path, witness, machine)
    return witness, machine


def _places(path: list[Node]) -> dict[bytes, Node]:
    return {node.chain: node for node in path}


def _compare_deliveries(judge: BrokerJudge, path: list[Node], witness: Witness) -> None:
    """Clients were sent the history's deliveries, if their history is the one that survived."""
    survived = _places(path)
    phantoms: dict[Copy, list[DeliverySent]] = {}
    for sent in judge.deliveries_sent:
        d = sent.effect
        if sent.chain not in survived and judge.gave_up(sent.chain):
            continue
        if sent.chain not in survived and d.consumer_tag.startswith(f"{STREAM}/"):
            judge.counters["phantom_reads"] += 1
            continue
        if sent.chain not in survived:
            judge.counters["phantom_deliveries"] += 1
            if d.consumer_tag.startswith(BROWSER):
                continue
            copy = d.consumer_tag.partition("/")[0], message_id(d.body)
            phantoms.setdefault(copy, []).append(sent)
            continue
        made = witness.deliveries.get((sent.position, d.conn, d.chan, d.delivery_tag))
        if made != d:
            text = f"{sent.member} sent a client at {sent.position} {d}, the history has {made}"
            judge.broken("G11", text)
    again: dict[Copy, list[tuple[int, DeliverEffect]]] = {}
    for (position, *_), d in witness.deliveries.items():
        copy = d.consumer_tag.partition("/")[0], message_id(d.body)
        if copy in phantoms:
            again.setdefault(copy, []).append((position, d))
    at = {position: node for node in path for position in range(node.first, node.position + 1)}
    for copy in again:
        if copy[1] in witness.delayed:  # published anew when due (GUARANTEES, "not promised")
            judge.counters["phantoms_due_again"] += 1
            continue
        for sent in phantoms[copy]:
            _flagged_again(judge, sent, copy, again[copy], at[witness.entered_at(copy)], survived)


def _flagged_again(
    judge: BrokerJudge,
    sent: DeliverySent,
    copy: Copy,
    again: list[tuple[int, DeliverEffect]],
    entered: Node,
    survived: dict[bytes, Node],
) -> None:
    """G11: a message sent from a lost history returns with its flag.

    A message that its client published again after a loss is another message to everybody.
    """
    if judge.gave_up(sent.chain):  # exception 1 of G28: no member that continues knows of it
        judge.counters["phantoms_given_up"] += 1
        return
    gone = list(judge.path(sent.chain))
    if not any(node.item.body == entered.item.body for node in gone):
        judge.counters["phantoms_published_anew"] += 1
        return
    fork = max((node.position for node in gone if node.chain in survived), default=0)
    after = [(position, d) for position, d in again if position > fork]
    if after and not min(after, key=lambda one: one[0])[1].redelivered:
        text = f"{sent.member} delivered {copy} at {sent.position} of a history that is gone"
        judge.broken("G11", f"{text}, and it came again unflagged")


def _look_for_confirmed(
    judge: BrokerJudge, path: list[Node], witness: Witness, machine: Machine
) -> None:
    """G9: a message confirmed to a client is in a queue, with a consumer, or was settled."""
    survived = _places(path)
    present: set[MessageId] = set()
    for vhost in machine.vhosts.values():
        for queue in all_queues(vhost):
            for message in (*queue.ready, *queue.returned.values()):
                present.add(message_id(message[BODY]))
            if queue.name == GRAVE:
                judge.counters["dead_lettered"] += len(queue.ready)
    for channel in machine.channels.values():
        for _, _, message, *_ in (*channel.unacked.values(), *channel.unsent.values()):
            if message[NUMBER]:
                present.add(message_id(message[BODY]))
    present.update(message_id(letter.message[BODY]) for letter in machine.late_letters)
    at_rest = present | {message for _, message in witness.settled.keys() - witness.rejected}
    witness.letters.at_rest(machine, at_rest, max(witness.colds, default=0))
    witness.stream.at_rest(machine)
    witness.moved.at_rest(machine)
    witness.deals.look(machine, "at the end")
    present |= witness.stream.gone | {message for _, message in witness.settled}
    _look_at_last_values(judge, witness, machine)
    judge.counters["replaced"] += len(witness.replaced - present)
    present |= witness.replaced
    for confirm in judge.confirms_sent:
        if confirm.chain not in survived and judge.gave_up(confirm.chain):
            judge.counters["given_up"] += 1
        else:
            _find(judge, confirm, survived, witness, present)


def _is_refused(machine: Machine, publish: Command) -> bool:
    """Whether a publish was nacked: a full queue did not take it, so it replaces nothing (G30)."""
    return any(
        isinstance(effect, Confirm) and not effect.ack and effect.publish_no == publish[3]  # type: ignore[misc]
        for effect in machine.effects
    )


def _look_at_last_values(judge: BrokerJudge, witness: Witness, machine: Machine) -> None:
    """G30: no message waits that a newer one of its key followed."""
    queue = machine.vhosts["/"].queues.get(LATEST) if "/" in machine.vhosts else None
    for message in queue.returned.values() if queue is not None else ():
        if message_id(message[BODY]) in witness.replaced:
            judge.broken("G30", f"{message_id(message[BODY])} waits, and a newer one came")


def _find(
    judge: BrokerJudge,
    sent: ConfirmSent,
    survived: dict[bytes, Node],
    witness: Witness,
    present: set[MessageId],
) -> None:
    applied = witness.entered.get(sent.message)
    answered = {applied} | witness.repeated.get(sent.message, set())
    lost = sent.chain not in survived or sent.position not in answered
    lost = lost or applied is None or sent.message not in present
    if sent.durable and lost:
        text = f"{sent.member} confirmed {sent.message} at {sent.position}: applied at {applied},"
        judge.broken("G9", f"{text} present {sent.message in present}")
    elif sent.chain in survived and _is_unroutable(sent, witness):
        judge.counters["confirmed_unroutable"] += 1
    elif lost and not any(cold > sent.position for cold in witness.colds):
        text = f"{sent.member} confirmed transient {sent.message} at {sent.position}"
        judge.broken("G9", f"{text}: applied at {applied}, and no cold start explains its loss")


def _is_unroutable(sent: ConfirmSent, witness: Witness) -> bool:
    """Whether the confirm answers a publish that reached no queue, or one that repeats it."""
    at = witness.unroutable.get(sent.message, set())
    return sent.position in at | (witness.repeated.get(sent.message, set()) if at else set())
