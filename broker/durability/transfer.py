"""The shell of state transfer: copies of the own store for joiners, a received copy for ourselves.

Copying, hashing, re-executing and verifying run on a worker thread; the loop keeps passing the
token meanwhile.  The old store stays in force until the new one is verified, then it is set aside.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from broker.durability.recovery import recover
from broker.durability.transfer_protocol import Receiver, Sender, Tag, decode, is_transfer
from broker.incidents.quarantine import TRANSFER, Quarantine
from broker.replication.replica import Divergence, ExecutionFailed, Replica, Withheld
from store import swap
from store.api import Meta, Store
from store.errors import StoreError
from store.lmdb_environment import DATA_NAME
from store.lmdb_store import LmdbStore
from vsync.totem.events import Direct
from vsync.types import Member

log = logging.getLogger("qpidd.join")


class TransferDonor:
    """Serves copies of this member's store to joiners."""

    def __init__(
        self,
        data_dir: Path,
        store: Callable[[], Store],
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Member, bytes], None],
        request_checkpoint: Callable[[], None],
    ) -> None:
        self._dir, self._store, self._loop = data_dir, store, loop
        self._request_checkpoint = request_checkpoint
        self._files: dict[str, int] = {}
        self.sender = Sender(send, self._copy, self._read, self._drop)
        for left in data_dir.glob("transfer.*"):
            shutil.rmtree(left, ignore_errors=True)

    def _path(self, tid: str) -> Path:
        return self._dir / f"transfer.{tid}"

    def _copy(self, tid: str, base: int, beyond: int) -> bool:
        store = self._store()
        if not tid.isalnum() or store.meta.position < base:
            return False
        # A joiner that may not execute some command is given the state behind it; where this store
        # has not come that far, the copy does not hold that command.
        saved = store.checkpoint()
        if (saved[0] if saved is not None else 0) < beyond <= store.meta.position:
            self._request_checkpoint()
            return False
        task = self._loop.run_in_executor(None, self._make, store, self._path(tid))
        task.add_done_callback(lambda done: self._made(tid, done))
        return True

    @staticmethod
    def _make(store: Store, path: Path) -> tuple[int, bytes]:
        store.copy_to(path)
        digest = blake2b(digest_size=16)
        with (path / DATA_NAME).open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
            return file.tell(), digest.digest()

    def _made(self, tid: str, done: asyncio.Future[tuple[int, bytes]]) -> None:
        error = done.exception()
        if error is not None:
            log.warning("a copy of the store for a joiner failed: %s", error)
            self.sender.copy_failed(tid, str(error))
            self._drop(tid)
            return
        if tid not in self.sender.offers:  # given up while it was made
            self._drop(tid)
            return
        size, digest = done.result()
        self._files[tid] = os.open(self._path(tid) / DATA_NAME, os.O_RDONLY)
        log.info("serving a copy of the store, %d bytes, to a joiner", size)
        self.sender.copied(tid, size, digest, self._loop.time())

    def _read(self, tid: str, offset: int, length: int) -> bytes:
        return os.pread(self._files[tid], length, offset)

    def _drop(self, tid: str) -> None:
        fd = self._files.pop(tid, None)
        if fd is not None:
            os.close(fd)
        shutil.rmtree(self._path(tid), ignore_errors=True)

    def close(self) -> None:
        """Give all copies up."""
        for tid in list(self._files):
            self._drop(tid)


class TransferJoiner:
    """Fetches a state from a donor into DIR/store.joining and verifies it there."""

    def __init__(
        self,
        data_dir: Path,
        own: Callable[[], Meta],
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Member, bytes], None],
        on_ready: Callable[[Replica, LmdbStore], None],
        on_failed: Callable[[str], None],
        quarantine: Quarantine,
    ) -> None:
        self._dir, self._own, self._loop, self._send = data_dir, own, loop, send
        self._on_ready, self._on_failed = on_ready, on_failed
        self._quarantine = quarantine
        self._receiver: Receiver | None = None
        self._fd = -1
        self._attempt = ""

    @property
    def progress(self) -> str:
        """Return how far the transfer is, for people; empty when there is none."""
        r = self._receiver
        if r is None:
            return "verifying the received state" if self._attempt else ""
        return f"received {r.received_bytes} of {max(r.size, 0)} bytes from {r.donor.name}"

    def begin(self, donor: Member, base: int) -> None:
        """Start a transfer; an earlier one is dropped."""
        self.abort()
        path = swap.incoming_file(self._dir)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._attempt = uuid.uuid4().hex
        log.info("asking %s for its state at or beyond position %d", donor.name, base)
        self._receiver = Receiver(
            self._attempt, donor, base, self._loop.time(), self._send, self._write,
            self._quarantine.beyond(),
        )  # fmt: skip

    def _write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._fd, data, offset)

    def abort(self) -> None:
        """Forget a transfer under way."""
        self._receiver, self._attempt = None, ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def on_datagram(self, payload: bytes) -> None:
        """Take a datagram of a donor."""
        message = decode(payload)
        if message is not None and self._receiver is not None:
            self._receiver.on_message(*message, self._loop.time())
            self._check()

    def wake(self) -> None:
        """Ask again for what was lost."""
        if self._receiver is not None:
            self._receiver.wake(self._loop.time())
            self._check()

    def _check(self) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        if receiver.failed:
            reason = receiver.failed
            self.abort()
            self._on_failed(reason)
        elif receiver.complete:
            attempt, fd = self._attempt, self._fd
            self._receiver, self._fd = None, -1
            task = self._loop.run_in_executor(None, self._verify, fd)
            task.add_done_callback(lambda done: self._verified(attempt, done))

    def _verify(self, fd: int) -> tuple[Replica, LmdbStore]:
        os.fsync(fd)
        os.close(fd)
        store = swap.received(self._dir, self._own())
        try:
            return recover(store.meta.member, store, withheld=self._quarantine.withheld()), store
        except BaseException:
            store.close()
            raise

    def _verified(self, attempt: str, done: asyncio.Future[tuple[Replica, LmdbStore]]) -> None:
        error = done.exception()
        if error is None:
            replica, store = done.result()
            if attempt == self._attempt:
                self._attempt = ""
                self._on_ready(replica, store)
            else:
                store.close()
        elif attempt == self._attempt:
            self.abort()
            if isinstance(error, ExecutionFailed):
                # The next attempt asks for a state behind that command.
                self._on_failed(self._quarantine.add(error, TRANSFER, self._own().member))
                return
            if not isinstance(error, (StoreError, Divergence, Withheld, ValueError, OSError)):
                raise error
            self._on_failed(str(error))


class StateTransfer:
    """Both sides of state transfer at one member; the donor's datagrams and the joiner's."""

    def __init__(
        self,
        data_dir: Path,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Member, bytes], None],
        quarantine: Quarantine,
        *,
        store: Callable[[], Store],
        own: Callable[[], Meta],
        request_checkpoint: Callable[[], None],
        on_ready: Callable[[Replica, LmdbStore], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._donor = TransferDonor(data_dir, store, loop, send, request_checkpoint)
        self._joiner = TransferJoiner(data_dir, own, loop, send, on_ready, on_failed, quarantine)
        self.begin, self.abort = self._joiner.begin, self._joiner.abort

    @property
    def progress(self) -> str:
        """Return how far the transfer to this member is, for people; empty when there is none."""
        return self._joiner.progress

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram was about state transfer; then it is dealt with."""
        if not is_transfer(direct.payload):
            return False
        if (message := decode(direct.payload)) and message[0] in (Tag.ASK, Tag.GET, Tag.DONE):
            self._donor.sender.on_message(direct.sender, *message, self._loop.time())
        else:
            self._joiner.on_datagram(direct.payload)
        return True

    def wake(self) -> None:
        """Do what is due by the clock."""
        self._joiner.wake()
        self._donor.sender.wake(self._loop.time())

    def close(self) -> None:
        """Give everything up."""
        self._joiner.abort()
        self._donor.close()
