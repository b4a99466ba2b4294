"""Kill the writer at any moment: what it reported is there, and nothing is half there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from store.api import Meta
from store.lmdb_store import LmdbStore

ROOT = Path(__file__).parents[3]
KILLS = 12

WRITER = """
import sys, os
from dataclasses import replace
from pathlib import Path
from store.api import Meta
from store.lmdb_store import LmdbStore
store = LmdbStore(Path(sys.argv[1]), Meta("prod", "a", "1"), map_bytes=1 << 17)
while True:
    first = store.meta.position + 1
    last = first + first % 5
    store.commit(b"%d..%d|" % (first, last) + bytes(first * 37 % 9000), first, last,
                 replace(store.meta, position=last, chain=b"%d" % last))
    os.write(1, b"%d\\n" % last)
    if first % 7 == 0:
        position = store.meta.position
        store.write_checkpoint(position, [b"%d" % position] * (first % 50), store.meta)
        os.write(1, b"c%d\\n" % position)
"""


def test_what_was_reported_survives_kill(tmp_path: Path) -> None:
    rng = random.Random(1)
    position = checkpointed = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        process.stdout.readline()  # it works
        time.sleep(rng.uniform(0.0, 0.12))
        process.kill()
        reported = process.stdout.read().split(b"\n")[:-1]
        process.stdout.close()
        process.wait()
        for line in reported:
            if line.startswith(b"c"):
                checkpointed = int(line[1:])
            else:
                position = int(line)
        store = LmdbStore(tmp_path / "store", Meta("prod", "a", "1"))
        assert store.meta.position >= position
        assert store.meta.chain == b"%d" % store.meta.position
        kept = store.checkpoint()
        start = 0
        if kept is not None:
            start, chunks = kept
            assert set(chunks) <= {b"%d" % start}
        assert start >= checkpointed
        expected = start + 1
        for first, entry in store.log(start):
            said_first, said_last = map(int, entry.split(b"|")[0].split(b".."))
            assert said_first == first == expected
            expected = said_last + 1
        assert expected == store.meta.position + 1
        position = store.meta.position
        store.close()
    assert position > KILLS
