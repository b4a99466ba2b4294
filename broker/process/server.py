"""The process around one member: options in, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from broker.durability.data_directory import DataDirectory, truncated
from broker.exit_codes import Exit
from broker.listener.client_listener import (
    AccessFileError,
    ClientListener,
    PortTaken,
    TlsFileError,
    reachable,
)
from broker.management.failover import FailoverExchange
from broker.memberlog.writer import LogWriteFailed
from broker.options.broker import BrokerOptions
from broker.process.arbitrator import Arbitrator
from broker.process.arbitrator_record import RecordFile
from broker.process.management_port import (
    BadDefinitions,
    Followers,
    MakeShovels,
    ManagementPort,
    Shovels,
)
from broker.process.member import BrokerMember
from broker.process.member_life import LifeState, prefix
from broker.process.reload import Reload, Serving, on_hang_up
from broker.process.ring_setup import NoRing, ring_transport
from broker.replication.replica import Divergence
from broker.service.messages import LogFileError, Messages
from broker.service.notify import ServiceManager
from broker.sharing.shared_store import Ended, SharedStore, ThreadEnded
from store.errors import (
    BROKEN,
    NO_SPACE,
    OWNER,
    REMEDY,
    DiskBroken,
    DiskFailed,
    FullMidway,
    NoSpace,
    NotWritable,
    StoreBusy,
    StoreDamaged,
    StoreError,
    broken,
    failed,
)
from vsync.io.redundant_transport import RedundantTransport
from vsync.io.traced_driver import TraceError

log = logging.getLogger("qpidd")

ENDING = signal.SIGTERM, signal.SIGINT
"""The signals that end a broker in order."""
MESSAGES_S = 2.0
"""How long writing the last log messages may take."""

ONE_VOTE = (
    "--cluster-size is 1: where no running cluster of this name is found, this member forms one in "
    "which it alone votes"
)


TRUNCATE_SHARED = (
    "--truncate: a store that others share is not emptied by a start; give another --shared-store"
)


class _Refused(Exception):
    """The broker cannot start; carries the exit code and the sentence for the operator."""

    def __init__(self, code: Exit, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def run(
    options: BrokerOptions,
    reread: Callable[[], BrokerOptions],
    *,
    make_shovels: MakeShovels,
    truncate: bool = False,
) -> int:
    """Run one broker until it is stopped; return the exit code of the process.

    `reread` reads the options again, on a thread; its exceptions are for the operator.
    `make_shovels`: like `broker.shovels.member_shovels.shovels_of`, for a known command.
    """
    try:
        messages = Messages(options.log)
    except LogFileError as error:
        print(f"qpidd: {error}", file=sys.stderr)
        return Exit.CANNOT_CREATE
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    runner = asyncio.Runner(loop_factory=factory)
    try:
        return int(runner.run(_run(options, reread, messages, truncate, make_shovels)))
    finally:
        # The executor is ended by a new thread, for which there may be no memory.
        with contextlib.suppress(RuntimeError):
            runner.close()
        messages.end(MESSAGES_S)


async def _run(
    options: BrokerOptions,
    reread: Callable[[], BrokerOptions],
    messages: Messages,
    truncate: bool,
    make_shovels: MakeShovels,
) -> Exit:
    try:
        if truncate and options.shared_store is not None:
            raise _Refused(Exit.USAGE, TRUNCATE_SHARED)
        if truncate and (options.arbitrator or options.data_dir is None):
            raise _Refused(Exit.USAGE, "--truncate: there is no store without --data-dir")
        loop = asyncio.get_running_loop()
        manager = ServiceManager(os.environ, loop.call_later, os.getpid())
        if options.arbitrator:
            return await _arbitrate(options, reread, messages, manager)
        return await _serve(options, reread, messages, manager, truncate, make_shovels)
    except _Refused as refused:
        messages.end(MESSAGES_S)
        print(f"qpidd: {refused.reason}", file=sys.stderr)
        return refused.code


async def _serve(
    options: BrokerOptions,
    reread: Callable[[], BrokerOptions],
    messages: Messages,
    manager: ServiceManager,
    truncate: bool,
    make_shovels: MakeShovels,
) -> Exit:
    loop = asyncio.get_running_loop()
    if options.clustered:
        messages.prefix = partial(prefix, str(options.cluster_bind), LifeState.PRE_INIT)
    listener = ClientListener(options.clients, loop)
    sharing = options.shared_store
    shared = SharedStore(sharing, options.cluster_name, loop) if sharing is not None else None
    try:
        # The ports are bound before the store is touched: a wrong port changes nothing on disk.
        api = ManagementPort(options.management, options.cluster_name)
        ports = await _bound(options, listener, api)
        transport = _transport(options)
        schemes = _schemes(options)
        url = _with_ports(reachable(options.cluster_url), zip(schemes, ports, strict=True))
        if shared is not None:
            manager.ready(lambda: shared.waiting_for)
            with _opening():
                options = replace(options, data_dir=await shared.lead(url))
        identity = _identity(options, messages, shared, truncate=truncate)
        try:
            member = _member(options, identity, transport, loop, url, listener)
        except BaseException:
            identity.close()
            raise
        if options.clustered:
            messages.prefix = member.life.prefix
        shovels = _shovels(make_shovels, member, options.cluster_name or identity.name, loop)
        reload = Reload(options, reread, loop, Serving(member, listener), messages)
        start = partial(member.start, [shovels, *_beside(member, shovels)])
        _start(start, loop, reload.begin, shared.terminate if shared else member.terminate)
        if shared is not None:
            shared.follow(member)
        try:
            await listener.serve(member)
            listening = _listening(schemes, options.interface, ports)
            await api.serve(member, shovels, listening, listener, lambda: reload.not_taken)
            manager.ready(lambda: member.life.state.value)
        except PortTaken as error:
            member.stop(Exit.UNAVAILABLE, str(error))
        code = await member.done
        manager.stopping()
        await api.close()
        if member.disk_stuck:
            messages.end(MESSAGES_S)
            os._exit(code)  # a thread is blocked in the disk: nothing can be tidied up
    except Ended as ended:
        log.info("stopping: %s", ended)
        return Exit.OK
    finally:
        await listener.close()
        if shared is not None:
            await shared.end()
    return code


def _identity(
    options: BrokerOptions, messages: Messages, shared: SharedStore | None, *, truncate: bool
) -> DataDirectory:
    """Open the data directory."""
    # A temporary one is removed at an orderly end: a signal waits until there is a member to end.
    if options.data_dir is None:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with _opening():
        if truncate and (aside := truncated(options.data_dir)):
            log.warning("--truncate: starting empty; the store is kept as %s", aside)
        identity = DataDirectory(options, shared)
    if options.clustered:
        messages.prefix = partial(prefix, identity.name, LifeState.PRE_INIT)
        if options.cluster_size == 1 and not identity.store.meta.cluster_id:
            log.warning("%s", ONE_VOTE)
    return identity


async def _bound(
    options: BrokerOptions, listener: ClientListener, api: ManagementPort
) -> list[int]:
    """Read the TLS files and bind the client ports; return their numbers."""
    try:
        listener.begin_access(options.access)
        if options.tls is not None:
            listener.begin_tls(options.tls)
        ports = []
        if options.port is not None:
            ports.append(await listener.bind(options.interface, options.port))
        if options.tls is not None:
            ports.append(await listener.bind(options.interface, options.tls.port, tls=True))
        await api.take(listener.tls_context)
    except (TlsFileError, AccessFileError, BadDefinitions) as error:
        raise _Refused(Exit.CONFIG, str(error)) from error
    except PortTaken as error:
        raise _Refused(Exit.UNAVAILABLE, str(error)) from error
    return ports


def _shovels(
    make: MakeShovels, member: BrokerMember, cluster: str, loop: asyncio.AbstractEventLoop
) -> Shovels:
    return make(
        member.controller, member.clients, member.operations.definitions.define, cluster,
        member.ring.driver.send_direct, loop,
    )  # fmt: skip


def _beside(member: BrokerMember, shovels: Shovels) -> tuple[Followers, FailoverExchange]:
    member.operations.show_replicas(shovels.replica_rows)
    controller, clients = member.controller, member.clients
    return (
        Followers(controller, clients, lambda: controller.replica.machine),
        FailoverExchange(controller, clients, lambda: member.operations.drained),
    )


def _listening(schemes: list[str], host: str, ports: list[int]) -> list[tuple[str, str, int]]:
    """Log the client ports; return them in the form of lists."""
    for port, scheme in zip(ports, schemes, strict=True):
        how = ", TLS" if scheme == "ssl" else ""
        log.info("listening for clients on %s:%d%s", host, port, how)
    protocols = ["amqp/ssl" if scheme == "ssl" else "amqp" for scheme in schemes]
    return [(protocol, host, port) for protocol, port in zip(protocols, ports, strict=True)]


def _schemes(options: BrokerOptions) -> list[str]:
    """The schemes of the client ports, in their order."""
    return ["tcp"] * (options.port is not None) + ["ssl"] * (options.tls is not None)


def _with_ports(url: str, ports: Iterable[tuple[str, int]]) -> str:
    """The address for others, with the actual ports where any free one was requested."""
    for scheme, port in ports:
        url = re.sub(rf"\b({scheme}:[^,]*):0(?=,|$)", rf"\g<1>:{port}", url)
    return url


async def _arbitrate(
    options: BrokerOptions,
    reread: Callable[[], BrokerOptions],
    messages: Messages,
    manager: ServiceManager,
) -> Exit:
    """Run an arbitrator: no client port, no store."""
    loop = asyncio.get_running_loop()
    transport = _transport(options)
    if options.data_dir is None:
        raise _Refused(
            Exit.USAGE,
            "--data-dir: an arbitrator needs one: if it forgot its record, a cluster could split",
        )
    with _opening():
        file = RecordFile(options.data_dir, options.cluster_name, str(options.cluster_bind))
    try:
        member = Arbitrator(options, file, transport, loop)
    except TraceError as error:
        raise _Refused(Exit.CANNOT_CREATE, str(error)) from error
    reload = Reload(options, reread, loop, None, messages)
    _start(member.start, loop, reload.begin, member.terminate)
    manager.ready(lambda: "arbitrator")
    code = await member.done
    manager.stopping()
    return code


def _start(
    start: Callable[[], None],
    loop: asyncio.AbstractEventLoop,
    hang_up: Callable[[], None],
    terminate: Callable[[], None],
) -> None:
    """Start to take part; end in order at SIGTERM and SIGINT; continue at SIGHUP, which a closed
    terminal sends, too."""
    for number in ENDING:
        loop.add_signal_handler(number, terminate)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    on_hang_up(loop, hang_up)
    start()


def _transport(options: BrokerOptions) -> RedundantTransport:
    try:
        transport = ring_transport(options, log.warning)
    except NoRing as error:
        raise _Refused(error.code, str(error)) from error
    if options.clustered:
        log.info("ring on %s, %s", transport.address, transport.security.describe())
    return transport


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    """Possible faults of a data directory, each with its exit code."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in (*BROKEN, *OWNER, *NO_SPACE):
            raise
        found = failed(str(error.filename), error)
        raise _refused(NotWritable(str(found)) if error.errno in OWNER else found) from error
    except StoreError as error:
        raise _refused(error) from error
    except ThreadEnded as error:
        raise _Refused(Exit.INTERNAL, str(error)) from error


def _refused(error: StoreError) -> _Refused:
    match error:
        case StoreBusy():
            what_next = "stop that broker, or give this one another --data-dir"
            return _Refused(Exit.BUSY, f"{error}; {what_next}")
        case NotWritable():
            return _Refused(Exit.CANNOT_CREATE, str(error))
        case DiskFailed():
            return _Refused(Exit.LATE_DISK, str(error))
        case DiskBroken():
            return _Refused(Exit.IO_ERROR, str(error))
        case NoSpace() | FullMidway():
            return _Refused(Exit.FULL, str(error))
        case StoreDamaged():
            return _Refused(Exit.DATA, f"{error}; {REMEDY}")
        case _:
            return _Refused(Exit.DATA, str(error))


def _member(
    options: BrokerOptions,
    identity: DataDirectory,
    transport: RedundantTransport,
    loop: asyncio.AbstractEventLoop,
    url: str,
    listener: ClientListener,
) -> BrokerMember:
    try:
        with _opening():
            return BrokerMember(options, identity, transport, loop, url, listener)
    except (LogWriteFailed, TraceError) as error:
        if isinstance(error, LogWriteFailed) and error.no_space:
            raise _Refused(Exit.FULL, f"{error}: free space there") from error
        if isinstance(error, LogWriteFailed) and error.number in BROKEN:
            raise _Refused(Exit.IO_ERROR, str(broken(str(error), error.number))) from error
        raise _Refused(Exit.CANNOT_CREATE, str(error)) from error
    except (Divergence, ValueError) as error:
        raise _Refused(Exit.DATA, str(error)) from error
