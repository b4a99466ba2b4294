"""The client listener and the process around one member: sockets in, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from broker.durability.data_directory import DataDirectory, truncated
from broker.exit_codes import Exit
from broker.frontend.connections import ClientLink
from broker.frontend.management import ManagementSession
from broker.memberlog.writer import LogWriteFailed
from broker.options.broker import BrokerOptions
from broker.process.arbitrator import Arbitrator
from broker.process.arbitrator_record import RecordFile
from broker.process.management_port import BadDefinitions, ManagementPort, PortTaken
from broker.process.member import BrokerMember
from broker.process.member_life import LifeState, prefix
from broker.process.messages import Messages
from broker.process.ring_setup import ring_transport
from broker.replication.replica import Divergence
from store.errors import NoSpace, NotWritable, StoreBusy, StoreError
from vsync.admin.protocol import PREAMBLE
from vsync.io.keys import KeyFileError
from vsync.io.redundant_transport import RedundantTransport
from vsync.io.traced_driver import TraceError
from vsync.io.transport import TransportError

log = logging.getLogger("qpidd")

WRITE_BUFFER_HIGH = 1 << 20
"""Above this much unsent output a client is too slow to read: its own input waits."""
BACKLOG = 512
MESSAGES_S = 2.0
"""How long the last messages may take to be written."""

ONE_VOTE = (
    "--cluster-size is 1: where no running cluster of this name is found, this member forms one in "
    "which it alone votes"
)


class ClientProtocol(asyncio.Protocol):
    """One client socket: AMQP or management, by its first bytes."""

    def __init__(self, member: BrokerMember) -> None:
        self._member = member
        self._transport: asyncio.Transport | None = None
        self._peer = "unknown"
        self._first = b""
        self._link: ClientLink | None = None
        self._management: ManagementSession | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # Not every loop's transport derives from asyncio.Transport (uvloop's does not).
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self._peer = f"{name[0]}:{name[1]}"
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)

    def data_received(self, data: bytes) -> None:
        """Bytes came; the first eight decide which protocol it is."""
        if self._link is not None:
            self._link.data_received(data)
        elif self._management is not None:
            self._answer(data)
        else:
            self._first += data
            if PREAMBLE.startswith(self._first[:8]):
                if len(self._first) >= len(PREAMBLE):
                    self._management = ManagementSession(self._member.operations, self._peer)
                    self._answer(self._first[len(PREAMBLE) :])
                return
            assert self._transport is not None
            self._link = self._member.clients.connect(self._peer, self._transport)
            self._link.data_received(self._first)

    def _answer(self, data: bytes) -> None:
        assert self._management is not None
        assert self._transport is not None
        self._transport.write(self._management.data_received(data))
        if self._management.closing:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._link is not None:
            self._link.connection_lost()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._link is not None:
            self._link.resume_writing()


class _Refused(Exception):
    """The broker cannot start; carries the exit code and the sentence for the operator."""

    def __init__(self, code: Exit, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def run(
    options: BrokerOptions, reread: Callable[[], BrokerOptions], *, truncate: bool = False
) -> int:
    """Run one broker until it is stopped; return the exit code of the process.

    `reread` reads the options again, on a thread; what it raises is for the operator.
    """
    messages = Messages(options.log_level.upper())
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    runner = asyncio.Runner(loop_factory=factory)
    try:
        return int(runner.run(_run(options, reread, messages, truncate)))
    finally:
        # The executor is ended by a new thread, for which there may be no memory.
        with contextlib.suppress(RuntimeError):
            runner.close()
        messages.end(MESSAGES_S)


async def _run(
    options: BrokerOptions, reread: Callable[[], BrokerOptions], messages: Messages, truncate: bool
) -> Exit:
    try:
        if truncate and (options.arbitrator or options.data_dir is None):
            raise _Refused(Exit.USAGE, "--truncate: there is no store without --data-dir")
        if options.arbitrator:
            return await _arbitrate(options)
        return await _serve(options, reread, messages, truncate)
    except _Refused as refused:
        messages.end(MESSAGES_S)
        print(f"qpidd: {refused.reason}", file=sys.stderr)
        return refused.code


async def _serve(
    options: BrokerOptions, reread: Callable[[], BrokerOptions], messages: Messages, truncate: bool
) -> Exit:
    loop = asyncio.get_running_loop()
    if options.clustered:
        messages.prefix = partial(prefix, str(options.cluster_bind), LifeState.PRE_INIT)
    holder: list[BrokerMember] = []
    # The ports are taken before the store is touched: a wrong one changes nothing on disk.
    try:
        server = await loop.create_server(
            lambda: ClientProtocol(holder[0]),
            options.interface,
            options.port,
            backlog=BACKLOG,
            start_serving=False,
        )
    except OSError as error:
        reason = f"cannot listen on {options.listen}: {error.strerror or error}"
        raise _Refused(Exit.UNAVAILABLE, reason) from error
    try:
        await _taken(api := ManagementPort(options.management, options.cluster_name))
        transport = _transport(options)
        if options.clustered:
            log.info("ring on %s, %s", transport.address, transport.security.describe())
        with _opening():
            if truncate and (aside := truncated(options.data_dir)):
                log.warning("--truncate: starting empty; the store is kept as %s", aside)
            identity = DataDirectory(options)
        if options.clustered:
            messages.prefix = partial(prefix, identity.name, LifeState.PRE_INIT)
            if options.cluster_size == 1 and not identity.store.meta.cluster_id:
                log.warning("%s", ONE_VOTE)
        try:
            port = server.sockets[0].getsockname()[1]
            url = options.cluster_url.replace(":0", f":{port}") if not options.port else ""
            member = _member(options, identity, transport, loop, url or options.cluster_url)
        except BaseException:
            identity.close()
            raise
        holder.append(member)
        if options.clustered:
            messages.prefix = member.life.prefix
        _handle_signals(loop, member.terminate, partial(_reread_limits, loop, reread, member))
        member.start()
        await server.start_serving()
        log.info("listening for clients on %s:%d", options.interface, port)
        await api.serve(member, (options.interface, port))
        code = await member.done
        await api.close()
        if member.disk_stuck:
            messages.end(MESSAGES_S)
            os._exit(code)  # a thread is in the disk: nothing of this process can be tidied up
    finally:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1.0)
    return code


async def _taken(api: ManagementPort) -> None:
    try:
        await api.take()
    except PortTaken as taken:
        raise _Refused(Exit.UNAVAILABLE, str(taken)) from taken
    except BadDefinitions as bad:
        raise _Refused(Exit.CONFIG, str(bad)) from bad


async def _arbitrate(options: BrokerOptions) -> Exit:
    """Run an arbitrator: no client port, no store."""
    loop = asyncio.get_running_loop()
    transport = _transport(options)
    if options.data_dir is None:
        raise _Refused(
            Exit.USAGE, "--data-dir: an arbitrator needs one, what it forgets could split a cluster"
        )
    with _opening():
        file = RecordFile(options.data_dir, options.cluster_name, str(options.cluster_bind))
    member = Arbitrator(options, file, transport, transport.address, loop)
    _handle_signals(loop, member.terminate, partial(log.info, "SIGHUP: nothing to read again"))
    member.start()
    return await member.done


def _handle_signals(
    loop: asyncio.AbstractEventLoop, terminate: Callable[[], None], hang_up: Callable[[], None]
) -> None:
    """End in order at SIGTERM and SIGINT; go on at SIGHUP, which a closed terminal sends, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, terminate)
    loop.add_signal_handler(signal.SIGHUP, hang_up)


def _reread_limits(
    loop: asyncio.AbstractEventLoop, reread: Callable[[], BrokerOptions], member: BrokerMember
) -> None:
    """Take --disk-free-limit and --memory-limit from the option file as it is now."""

    def take(done: asyncio.Future[BrokerOptions]) -> None:
        if error := done.exception():
            log.error("SIGHUP: the limits stay as they are: %s", error)
            return
        member.set_limits(done.result().bounds)
        log.info("SIGHUP: --disk-free-limit and --memory-limit were read again, and nothing else")

    loop.run_in_executor(None, reread).add_done_callback(take)


def _transport(options: BrokerOptions) -> RedundantTransport:
    try:
        return ring_transport(options, log.warning)
    except KeyFileError as error:
        raise _Refused(Exit.CONFIG, str(error)) from error
    except TransportError as error:
        raise _Refused(Exit.UNAVAILABLE, str(error)) from error


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    """What may be wrong with a data directory, each with its exit code."""
    try:
        yield
    except StoreBusy as error:
        raise _Refused(Exit.BUSY, str(error)) from error
    except NotWritable as error:
        raise _Refused(Exit.CANNOT_CREATE, str(error)) from error
    except NoSpace as error:
        raise _Refused(Exit.FULL, str(error)) from error
    except StoreError as error:
        raise _Refused(Exit.DATA, str(error)) from error


def _member(
    options: BrokerOptions,
    identity: DataDirectory,
    transport: RedundantTransport,
    loop: asyncio.AbstractEventLoop,
    url: str,
) -> BrokerMember:
    try:
        return BrokerMember(options, identity, transport, loop, url)
    except (LogWriteFailed, TraceError) as error:
        raise _Refused(Exit.CANNOT_CREATE, str(error)) from error
    except NoSpace as error:
        raise _Refused(Exit.FULL, str(error)) from error
    except (StoreError, Divergence, ValueError) as error:
        raise _Refused(Exit.DATA, str(error)) from error
