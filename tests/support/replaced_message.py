"""Faults of memory: a waiting message is replaced by another one."""

from __future__ import annotations

from broker.machine.state import Message
from broker.waiting.backlog import Backlog


def replace_message(ready: Backlog[Message], at: int, message: Message) -> None:
    """Put a message in the place `at` of the waiting ones; all others stay."""
    messages = list(ready)
    messages[at] = message
    while ready:
        ready.pop()
    ready.extend(messages)
