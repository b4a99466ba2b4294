"""Clients at every broker of a mode with one active broker: how long none of them got a confirm,
and whether the brokers' logs and the clients' histories are consistent.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.support.load_clients import (
    JOIN_S,
    QUEUE,
    TROUBLE,
    Notes,
    connect,
    history,
    take_the_rest,
)
from tests.system.test_network_faults import findings
from tests.system.verify.support.client_checks_without_spark import compare_clients
from tools.demo.local_cluster import BrokerProcess

MORE = 50
"""This many confirms show that messages flow."""
PAUSE_S = 0.05
"""Time between attempts at a broker that refuses clients: the precision of the measured silence."""
REST_S = 0.005
Record = Callable[[str, object], None]


class Clients:
    """One client for each broker, which stays with it until `end`: it publishes with confirms and
    takes back one message of four.  So a client that hangs at a stalled broker does not hide when
    the next broker begins to serve.
    """

    def __init__(self, brokers: Sequence[BrokerProcess], root: Path) -> None:
        self.confirmed: list[tuple[float, int]] = []
        """The time and the number of each confirm."""
        self.received: set[int] = set()
        self._root, self._histories = root, root / "clients"
        self._numbers = itertools.count()
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name=f"client of {one}", daemon=True)
            for one in brokers
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        self.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def go_on(self, seconds: float = START_SECONDS) -> None:
        """Wait until more messages are confirmed."""
        goal = len(self.confirmed) + MORE
        wait_until(lambda: len(self.confirmed) >= goal, seconds, f"{MORE} confirms more")

    def silent_since(self, began: float) -> float:
        """The longest time without a confirm to any client, in seconds, from then to the last
        one."""
        times = sorted(when for when, _ in self.confirmed)
        last_before = [when for when in times if when <= began][-1:]
        return max(
            after - before
            for before, after in itertools.pairwise(last_before + [t for t in times if t > began])
        )

    def judge(
        self, serving: BrokerProcess, brokers: Sequence[BrokerProcess], *, whole: bool = True
    ) -> None:
        """Take the remaining messages, stop the brokers cleanly, and compare all records.

        Not `whole`: the disk had no room for the only log of some positions.
        """
        assert not any(thread.is_alive() for thread in self._threads)
        take_the_rest(serving.address, self._histories, self.received)
        confirmed = {number for _, number in self.confirmed}
        lost = sorted(confirmed - self.received)
        assert not lost, f"{len(lost)} of {len(confirmed)} confirmed messages are lost: {lost[:9]}"
        for one in brokers:
            if one.alive:
                one.terminate(START_SECONDS)
        assert findings(self._root) == []
        if not whole:
            return
        heard = compare_clients([self._root])
        assert heard.mismatches == []
        assert heard.confirmed >= len(confirmed)

    def _run(self, broker: BrokerProcess) -> None:
        with closing(history(self._histories, f"at-{broker}")) as mine:
            while not self._ends.is_set():
                notes = Notes(mine)
                try:
                    with connect(broker.address) as connection:
                        channel = connection.channel()
                        channel.confirm_delivery()
                        channel.queue_declare(QUEUE, durable=True)
                        while not self._ends.wait(REST_S):
                            number = next(self._numbers)
                            notes.publish(channel, b"%d" % number)
                            self.confirmed.append((time.monotonic(), number))
                            if number % 4 == 0:
                                notes.take_one(channel, self.received)
                except TROUBLE:
                    notes.lost()
                    self._ends.wait(PAUSE_S)
