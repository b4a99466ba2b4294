"""Pages: blocks of waiting messages that a checkpoint contains in their on-disk form.

The root is computed from the hashes at the head of each page. That the messages have these hashes
is checked at once in a snapshot from another member; in this member's own snapshot it is checked
when a page is read, before any of its messages is used.
Decision: docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md.
"""

from broker.machine.digest import MASK, message_hashes
from broker.machine.image.queue_invariants import (
    backlog_sum,
    contents_sum,
    ready_sum,
    returned_sum,
)
from broker.machine.state import CONTENT_HASH, NUMBER, Message, Queue, State
from broker.waiting.blocks import Block, Summary
from broker.waiting.page_format import contents_of, unpack
from broker.waiting.pager import summary_of

PAGE_BYTES_MAX = 1 << 20
"""The most memory of the messages in an unchanged page; larger pages go message by message."""


def goes_as_it_is(block: Block[Message]) -> bool:
    page = block.page
    return page is not None and page.summary.memory <= PAGE_BYTES_MAX


class PageReader:
    """Takes the pages of a snapshot; `own`: the snapshot is this member's."""

    def __init__(self, state: State, *, own: bool) -> None:
        self._state = state
        self._own = own
        # First place and elements: the position of a page is known when all have come.
        self._sums: dict[Block[Message], tuple[int, int]] = {}

    def take(
        self, queue: Queue, first: int, count: int, size: int, timed: int, memory: int,
        persistent: bool, data: bytes,
    ) -> None:  # fmt: skip
        """Put the messages of a page behind those that the queue has."""
        summary = Summary(count, size, timed, memory, persistent)
        contents = contents_of(data)
        if len(contents) != count:
            msg = f"a page of {len(contents)} messages for {count} of queue {queue.number}"
            raise ValueError(msg)
        block = self._block(data, summary)
        self._sums[block] = first, contents_sum(queue, contents, first)
        for full in (queue.ready.adopt(block), None if block.on_disk else block):
            self._state.full(full)
        queue.ready_bytes += size
        if queue.stream is None:
            queue.timed += timed

    def ready_sum(self, queue: Queue) -> int | None:
        """The sum of all pages of a queue; None if a page's place differs from its own record."""
        if not self._sums:
            return ready_sum(queue, fresh=True)
        seq, total = queue.next_seq - len(queue.ready), returned_sum(queue, fresh=True)
        for part in queue.ready.parts():
            if isinstance(part, Block) and part in self._sums:
                first, elements = self._sums.pop(part)
                if first != seq:
                    return None
                total += elements
            else:
                total += backlog_sum(queue, part, seq, fresh=True)
            seq += len(part)
        return total & MASK

    def _block(self, data: bytes, summary: Summary) -> Block[Message]:
        messages: tuple[Message, ...] | None = None
        pager = self._state.pager
        if pager is None or not self._own:
            messages = _hashed(data, summary)
        if pager is not None:
            block = pager.take(data, summary, _wrong if self._own else None)
            if block is not None:
                return block
        return Block(messages or _hashed(data, summary))  # there is no room for it


def _hashed(data: bytes, summary: Summary) -> tuple[Message, ...]:
    messages = unpack(data)
    wrong = _wrong(messages)
    if not wrong and summary_of(messages) != summary:
        wrong = "they are others than it says"
    if wrong:
        msg = f"a page is not what was published: {wrong}"
        raise ValueError(msg)
    return messages


def _wrong(messages: tuple[Message, ...]) -> str:
    """What is wrong with messages (`pager.Judge`)."""
    _, *rest = zip(*messages, strict=True)
    for message, content in zip(messages, message_hashes(*rest), strict=True):
        if message[CONTENT_HASH] != content:
            return f"message {message[NUMBER]} has another hash"
    return ""
