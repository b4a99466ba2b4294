"""The cost of one message at the edge: bytes to command, and effect to bytes.

    python -m tests.bench.edge [messages]

Prints JSON: CPU microseconds per message of 256 bytes for each step, on one thread.  `parse` is the
connection alone; `gateway` includes it; `outbox` is effects to bytes, `confirm` release and flush.
"""

import json
import platform
import time

from broker.access.access import Access
from broker.amqp import codec
from broker.amqp.connection import ServerConnection
from broker.amqp.fields import Value
from broker.amqp.handshake import Limits, ServerIdentity
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.machine.effects import Confirm, DeliverEffect, Effect
from broker.machine.handlers.definitions import define_first
from broker.machine.machine import Machine
from tests.bench.support.numbers import numbers

BODY = bytes(range(256))
PROPERTIES = codec.encode_properties({"content_type": "application/json", "delivery_mode": 2})
READ_BYTES = 65_536
TURN = 64


def opening(*channels: int) -> bytes:
    out = bytearray(codec.PROTOCOL_HEADER)
    plain: tuple[Value, ...] = ({}, "PLAIN", b"\0guest\0guest", "en_US")
    codec.append_method(out, 0, "connection.start-ok", plain)
    codec.append_method(out, 0, "connection.tune-ok", (0, 0, 60))
    codec.append_method(out, 0, "connection.open", ("/",))
    for channel in channels:
        codec.append_method(out, channel, "channel.open")
    codec.append_method(out, 1, "confirm.select", (True,))
    return bytes(out)


def parse(stream: bytes) -> float:
    connection = ServerConnection(lambda one: one.user, Limits(), ServerIdentity(), 0.0)
    connection.receive(opening(1), 0.0)
    connection.accept_open()
    started = time.process_time()
    for at in range(0, len(stream), READ_BYTES):
        connection.receive(stream[at : at + READ_BYTES], 0.0)
    return time.process_time() - started


def local() -> tuple[Gateway, Outbox]:
    machine = Machine("a")
    define_first(machine)
    gateway = Gateway("a", access=Access(lambda: machine))
    outbox = Outbox(gateway)
    gateway.session_started(1)
    outbox.unfence()
    return gateway, outbox


def gateway(stream: bytes) -> float:
    gate, _ = local()
    client = gate.connect("127.0.0.1:1", True, 0.0)
    gate.data_received(client, opening(1), 0.0)
    started = time.process_time()
    for at in range(0, len(stream), READ_BYTES):
        gate.data_received(client, stream[at : at + READ_BYTES], 0.0)
        gate.take_commands()
    return time.process_time() - started


def outbox(count: int, *, confirms: bool) -> float:
    gate, box = local()
    client = gate.connect("127.0.0.1:1", True, 0.0)
    gate.data_received(client, opening(1), 0.0)
    turns: list[list[tuple[int, Effect]]] = []
    for start in range(1, count, TURN):
        numbers = range(start, start + TURN)
        turns.append(
            [
                (n, Confirm(1, 1, n, True, True))
                if confirms
                else (n, DeliverEffect(1, 1, "tag", n, False, "", "q", PROPERTIES, BODY, False))
                for n in numbers
            ]
        )
    started = time.process_time()
    for effects in turns:
        box.effects(effects)
        box.release(effects[-1][0])
        box.flush()
        for one in gate.take_writable():
            one.take_output()
    return time.process_time() - started


def main() -> None:
    (count,) = numbers(__doc__, messages=100_000)
    stream = bytearray()
    codec.append_publish(stream, 1, "", "q", PROPERTIES, BODY)
    stream *= count
    seconds = {
        "parse": parse(bytes(stream)),
        "gateway": gateway(bytes(stream)),
        "outbox": outbox(count, confirms=False),
        "confirm": outbox(count, confirms=True),
    }
    figures = {name: round(value / count * 1e6, 2) for name, value in seconds.items()}
    print(json.dumps({"python": platform.python_version(), "messages": count, "us": figures}))


if __name__ == "__main__":
    main()
