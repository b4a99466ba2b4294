"""Read a stream from where the last run ended, whatever brokers are lost on the way.

Prints each message, then writes the offset of the next one to FILE.  So a run that is killed
between the two prints one message again, and misses none.  A program that keeps its results in a
database writes both in one transaction.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
from pika.exceptions import AMQPConnectionError, AMQPError

PREFETCH = 200
ROUNDS = 60  # so often the list of brokers is tried, with a pause of a second after each round
REFUSALS = ("(403)", "(530)")  # of a password or virtual host: all brokers give the same answer


def messages(
    urls: list[pika.URLParameters], stream: str, offset: int
) -> Iterator[tuple[int, bytes]]:
    """Yield offset and body of each message from this offset on, and wait for more at the end."""
    failed = 0
    for url in itertools.cycle(urls):
        try:
            channel = pika.BlockingConnection(url).channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            begin = {"x-stream-offset": offset}
            for method, properties, body in channel.consume(stream, arguments=begin):
                failed = 0
                at = properties.headers["x-stream-offset"]
                yield at, body
                offset = at + 1
                channel.basic_ack(method.delivery_tag)  # gives credit for the next one
        except (AMQPConnectionError, OSError) as error:
            print(f"{url.host}:{url.port}: {error!r}", file=sys.stderr)
            if any(code in repr(error) for code in REFUSALS):
                raise SystemExit("refused: no other broker is asked") from None
            failed += 1
            if failed == ROUNDS * len(urls):
                raise SystemExit("no broker can be reached") from None
            time.sleep(failed % len(urls) == 0)


def main() -> None:
    """Begin with the first message where there is no file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream")
    parser.add_argument("file", type=Path)
    parser.add_argument("url", nargs="+", type=pika.URLParameters)
    arguments = parser.parse_args()
    try:
        offset = int(arguments.file.read_text()) if arguments.file.exists() else 0
        for at, body in messages(arguments.url, arguments.stream, offset):
            print(at, body.decode(errors="replace"), flush=True)
            arguments.file.write_text(str(at + 1))
    except (AMQPError, OSError, ValueError) as error:  # no such stream; not an offset in the file
        raise SystemExit(repr(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
