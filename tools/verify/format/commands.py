"""Numbers of commands and outcomes in a BATCH, as in docs/MEMBERLOG.md."""

from __future__ import annotations

from enum import IntEnum


class Command(IntEnum):
    """The closed list of ordered commands: the bytes of a batch's kinds."""

    CONNECTION_OPEN = 1
    CONNECTION_CLOSE = 2
    CHANNEL_OPEN = 3
    CHANNEL_CLOSE = 4
    EXCHANGE_DECLARE = 5
    EXCHANGE_DELETE = 6
    EXCHANGE_BIND = 7
    EXCHANGE_UNBIND = 8
    QUEUE_DECLARE = 9
    QUEUE_BIND = 10
    QUEUE_UNBIND = 11
    QUEUE_PURGE = 12
    QUEUE_DELETE = 13
    PUBLISH = 14
    CONSUME = 15
    CANCEL = 16
    GET = 17
    ACK = 18
    NACK = 19
    RECOVER = 20
    QOS = 21
    SENT = 22
    TX_COMMIT = 23
    BODY_PART = 24
    ACTIVATE = 64
    DIGEST = 65
    TICK = 66
    SHUTDOWN = 67
    POISONED = 68
    REEXECUTED = 69
    VOTERS = 70
    UPGRADE = 71
    ALARM = 72
    DEFINE = 73
    PROMOTE = 74
    DEMOTE = 75


class Outcome(IntEnum):
    """The closed list of outcomes below 300; from there on they are reply codes of AMQP."""

    OK = 0
    IGNORED = 1
    MALFORMED = 2
    OUT_OF_SEQUENCE = 3
    UNROUTABLE = 200
    REPEATED = 201
