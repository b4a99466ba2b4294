"""Publish the lines of standard input without duplicates, whatever brokers are lost on the way.

The producer names itself and numbers its messages. When a broker is lost, unconfirmed messages are
sent to the next one with the same numbers. A broker that already has a message confirms it, and
does not store it again.
"""

import argparse
import itertools
import sys
import time
import uuid
from collections.abc import Iterable, Iterator

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError

ROUNDS = 60  # so often the list of brokers is tried, with a pause of a second after each round
REFUSALS = ("(403)", "(530)")  # of a password or virtual host: all brokers give the same answer


def connected(urls: list[pika.URLParameters], queue: str) -> Iterator[BlockingChannel]:
    """Yield a channel at the next broker that lets us in, on each request."""
    for attempt, url in enumerate(itertools.chain.from_iterable([urls] * ROUNDS), 1):
        try:
            channel = pika.BlockingConnection(url).channel()
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
        except (AMQPConnectionError, OSError) as error:
            print(f"{url.host}:{url.port}: {error!r}", file=sys.stderr)
            if any(code in repr(error) for code in REFUSALS):
                raise SystemExit("refused: no other broker is asked") from None
            time.sleep(attempt % len(urls) == 0)
        else:
            yield channel
    raise SystemExit("no broker can be reached")


def publish_once(urls: list[pika.URLParameters], queue: str, lines: Iterable[bytes]) -> int:
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queue")
    parser.add_argument("url", nargs="+", type=pika.URLParameters)
    arguments = parser.parse_args()
    try:
        print(publish_once(arguments.url, arguments.queue, sys.stdin.buffer), "lines, each once")
    except AMQPError as error:
        raise SystemExit(repr(error)) from None
