"""Queues with message groups: which consumer holds which group, and which messages of it wait.

Applies `broker.waiting.groups`, which works on keys, to messages, and keeps the digest.
"""

from broker.machine.digest import bytes_hash, item_hash
from broker.machine.move_log import FLAG, IN_GROUP, note
from broker.machine.requests.message_keys import key_by
from broker.machine.state import PROPERTIES, Consumer, Message, Queue, State
from broker.waiting.groups import KEPT_GROUPS_MAX, Groups


def group_key(groups: Groups[Consumer], message: Message) -> bytes:
    """The key of a message's group; the same empty key for all messages that name none."""
    key = key_by(message[PROPERTIES], groups.raw_header)
    if not groups.keeps or not key:
        return key
    return (int.from_bytes(key[:2], "big") % KEPT_GROUPS_MAX).to_bytes(2, "big")


def note_group(
    state: State, queue: Queue, groups: Groups[Consumer], seq: int, message: Message
) -> None:
    """Record it in the member log. Where groups are kept, a message without a key has no group."""
    key = group_key(groups, message)
    if key or not groups.keeps:
        what = IN_GROUP | FLAG if groups.keeps else IN_GROUP
        note(state, what, queue.mark, seq, 0, bytes_hash(key))


def wait_in_group(groups: Groups[Consumer], place: int, message: Message) -> None:
    """It waits at this place; the holder of its group may be served."""
    holder = groups.waits(group_key(groups, message), place)
    if holder is not None and holder.waiting:
        groups.pending[holder] = None


def let_go_of_group(state: State, queue: Queue, groups: Groups[Consumer], message: Message) -> None:
    """No channel holds the message any more. Consumers that may now take the rest of its group get
    it when the command is done."""
    if groups.let_go(group_key(groups, message)):
        state.freed[queue.number] = queue


def keep_no_groups(state: State, consumer: Consumer) -> None:
    """The consumer is gone: its groups go to others once no message of them is held."""
    groups = consumer.queue.groups
    if groups is not None:
        groups.pending.pop(consumer, None)
        for key in groups.keep_no_more(consumer):
            state.remove(kept_element(consumer, key))


def kept_element(consumer: Consumer, key: bytes) -> int:
    return item_hash("kept", consumer.queue.number, *consumer.channel.key, consumer.tag, key)
