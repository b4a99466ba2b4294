"""Read a stream from where the last run ended, whatever brokers are lost on the way.

python read_stream.py STREAM FILE URL [URL ...]

Prints each message, then writes the offset of the next one to FILE.  So a run that is killed
between the two prints one message again, and misses none.  A program that keeps its results in a
database writes both in one transaction.
"""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
from pika.exceptions import AMQPConnectionError

PREFETCH = 200
ROUNDS = 60
"""How often the list of brokers is tried, with a pause of a second after each round."""


def messages(urls: list[str], stream: str, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and body of each message from this offset on, and wait for more at the end."""
    failed = 0
    for url in itertools.cycle(urls):
        try:
            channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            begin = {"x-stream-offset": offset}
            for method, properties, body in channel.consume(stream, arguments=begin):
                failed = 0
                at = properties.headers["x-stream-offset"]
                yield at, body
                offset = at + 1
                channel.basic_ack(method.delivery_tag)  # gives credit for the next one
        except AMQPConnectionError:
            failed += 1
            if failed == ROUNDS * len(urls):
                raise SystemExit("no broker can be reached") from None
            if failed % len(urls) == 0:
                time.sleep(1)


def main() -> None:
    """Begin with the first message where there is no file yet."""
    stream, file, *urls = sys.argv[1:]
    place = Path(file)
    offset = int(place.read_text()) if place.exists() else 0
    for at, body in messages(urls, stream, offset):
        print(at, body.decode(errors="replace"), flush=True)
        place.write_text(str(at + 1))


if __name__ == "__main__":
    main()
