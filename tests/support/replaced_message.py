"""Faults of memory: another message in the place of one that waits."""

from __future__ import annotations

from broker.machine.state import Message
from broker.waiting.backlog import Backlog


def replace_message(ready: Backlog[Message], at: int, message: Message) -> None:
    """Put a message in the place `at` of those that wait; all others stay."""
    messages = list(ready)
    messages[at] = message
    while ready:
        ready.pop()
    ready.extend(messages)
