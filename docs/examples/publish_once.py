"""Publish lines without duplicates, whatever brokers are lost on the way.

python publish_once.py QUEUE URL [URL ...] < lines

The producer names itself and numbers its messages. When a broker is lost, unconfirmed messages are
sent to the next one with the same numbers. A broker that already has a message confirms it, and
does not store it again.
"""

import itertools
import sys
import time
import uuid
from collections.abc import Iterable, Iterator

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError

ROUNDS = 60
"""How often the list of brokers is tried, with a pause of a second after each round."""


def connected(urls: list[str], queue: str) -> Iterator[BlockingChannel]:
    """Yield a channel at the next broker that lets us in, on each request."""
    for attempt, url in zip(range(ROUNDS * len(urls)), itertools.cycle(urls), strict=False):
        try:
            channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
        except AMQPConnectionError:
            if attempt % len(urls) == len(urls) - 1:
                time.sleep(1)
        else:
            yield channel
    raise SystemExit("no broker can be reached")


def publish_once(urls: list[str], queue: str, lines: Iterable[bytes]) -> int:
    """Publish each line, wait for its confirm, and return how many there were."""
    producer = str(uuid.uuid4())  # another run, other numbers
    channels = connected(urls, queue)
    channel = next(channels)
    number = 0
    for number, line in enumerate(lines, 1):
        headers = {"x-producer-id": producer, "x-sequence": number}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        while True:
            try:
                channel.basic_publish("", queue, line.rstrip(b"\n"), properties, mandatory=True)
                break
            except AMQPConnectionError:
                channel = next(channels)
    channel.connection.close()
    return number


if __name__ == "__main__":
    print(publish_once(sys.argv[2:], sys.argv[1], sys.stdin.buffer), "lines, each once")
