"""Which members are admitted, and whose frames count: real nodes, drivers and sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import zmq

from tests.support.ring.ring_over_sockets import (
    CONFIG,
    QUICK,
    KeyDirectory,
    Process,
    free_addresses,
    keys_for,
    together,
    until,
)
from vsync.io.keys import make_pair
from vsync.io.peer_link import REDIAL_S, Link
from vsync.io.security import KeyRefused, Plain, Security
from vsync.totem.config import RingConfig
from vsync.types import Member, RingId
from vsync.wire.codec import Codec
from vsync.wire.messages import Datagram, Join, Merge

Story = Callable[[Path], Awaitable[None]]


def play(story: Story, folder: Path) -> None:
    asyncio.run(story(folder))  # type: ignore[arg-type]


async def ring_of(
    folder: Path, count: int, config: RingConfig = CONFIG
) -> tuple[KeyDirectory, list[Process]]:
    """Start members with keys and wait until they share one view."""
    key_directory = KeyDirectory(folder / "public")
    addresses = free_addresses(count)
    pairs = keys_for(addresses)
    for pair in pairs:
        key_directory.allow(pair)
    processes = [
        Process(address, key_directory.curve(pair), addresses, config=config)
        for address, pair in zip(addresses, pairs, strict=True)
    ]
    await until(together(*processes))
    return key_directory, processes


async def exchange(*processes: Process) -> None:
    """Each member sends a payload, and all deliver it."""
    payloads = [f"{process.me} in view {process.views}".encode() for process in processes]
    for process, payload in zip(processes, payloads, strict=True):
        assert process.driver.submit(payload)
    await until(lambda: all(set(payloads) <= set(process.delivered) for process in processes))


def test_members_with_keys_form_a_ring_and_admit_a_next_incarnation(tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        _, (a, b, c) = await ring_of(folder, 3)
        await exchange(a, b, c)
        security = c.transport.security
        c.stop()  # without a leave notice: a crash
        await until(together(a, b))
        again = Process(c.me.address, security, [a.me.address, b.me.address], 2)
        await until(together(a, b, again))
        await exchange(a, b, again)
        for process in (a, b, again):
            assert "newcomers_refused" in process.transport.counters
            assert not process.transport.counters["newcomers_refused"]
            assert not process.transport.counters.get("frames_under_false_names")
            process.stop()

    play(story, tmp_path)


def test_a_member_with_foreign_keys_is_refused_and_knows_why(tmp_path: Path) -> None:
    """It allows the members, but they do not allow it: it is refused and named, and no
    view changes."""

    async def story(folder: Path) -> None:
        key_directory, (a, b) = await ring_of(folder, 2)
        before = a.views, b.views
        address = free_addresses(1)[0]
        pair = make_pair(address)
        foreign = Process(address, key_directory.curve(pair), [a.me.address, b.me.address])
        await until(lambda: len(foreign.transport.refusals) == 2)
        assert set(foreign.transport.refusals.values()) == {KeyRefused.KEY}
        assert a.transport.counters["newcomers_refused"]
        await exchange(a, b)
        assert (a.views, b.views) == before
        assert foreign.members == (foreign.me,) or not foreign.members

        key_directory.allow(pair)  # an operator allows it; no member is restarted
        await until(together(a, b, foreign))
        for process in (a, b, foreign):
            process.stop()

    play(story, tmp_path)


def test_a_newcomer_that_expects_other_keys_knows_why(tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        _, (a, b) = await ring_of(folder, 2)
        views = a.views, b.views
        address = free_addresses(1)[0]
        elsewhere = KeyDirectory(folder / "elsewhere")
        for pair in (make_pair(address), make_pair(a.me.address)):
            elsewhere.allow(pair)
        newcomer = Process(address, elsewhere.curve(make_pair(address)), [a.me.address])
        await until(lambda: newcomer.transport.refusals == {a.me.address: KeyRefused.THEIR_KEY})
        await exchange(a, b)
        assert (a.views, b.views) == views
        for process in (a, b, newcomer):
            process.stop()

    play(story, tmp_path)


def test_mechanisms_do_not_mix(tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        _, (a, b) = await ring_of(folder, 2)
        views = a.views, b.views
        others: list[Security | None] = [None, Plain("user", "word")]
        for security in others:
            newcomer = Process(free_addresses(1)[0], security, [a.me.address])
            await until(
                lambda process=newcomer: (
                    process.transport.refusals  # type: ignore[misc]
                    == {a.me.address: KeyRefused.MECHANISM}
                )
            )
            newcomer.stop()
        await exchange(a, b)
        assert (a.views, b.views) == views
        for process in (a, b):
            process.stop()

    play(story, tmp_path)


def test_a_name_and_a_password(tmp_path: Path) -> None:
    async def story(_: Path) -> None:
        addresses = free_addresses(3)
        a, b = (Process(address, Plain("shop", "word"), addresses[:2]) for address in addresses[:2])
        await until(together(a, b))
        wrong = Process(addresses[2], Plain("shop", "work"), addresses[:2])
        await until(lambda: set(wrong.transport.refusals.values()) == {KeyRefused.KEY})
        await exchange(a, b)
        for process in (a, b, wrong):
            process.stop()

    play(story, tmp_path)


def test_a_key_changes_while_the_ring_goes_on(tmp_path: Path) -> None:
    """The new key is allowed beside the old, its member restarts with it, the old key
    is removed."""

    async def story(folder: Path) -> None:
        key_directory, (a, b, c) = await ring_of(folder, 3)
        await exchange(a, b, c)
        second = make_pair(c.me.name)
        key_directory.allow(second)
        old = c.transport.security
        c.driver.leave()
        await until(together(a, b))
        c.stop()
        again = Process(c.me.address, key_directory.curve(second), [a.me.address, b.me.address], 2)
        await until(together(a, b, again))
        await exchange(a, b, again)

        for path in key_directory.folder.iterdir():
            if f'"{second.name}"' in path.read_text() and second.public not in path.read_text():
                path.unlink()
        gone = old.own.public  # type: ignore[attr-defined]
        lists = [process.transport.security.allowed for process in (a, b)]  # type: ignore[attr-defined]
        await until(lambda: all(gone not in allowed.names for allowed in lists))
        views = a.views, b.views, again.views
        impostor = Process(free_addresses(1)[0], old, [a.me.address, b.me.address], 3)
        await until(lambda: set(impostor.transport.refusals.values()) == {KeyRefused.KEY})
        await exchange(a, b, again)
        assert (a.views, b.views, again.views) == views
        for process in (a, b, again, impostor):
            process.stop()

    play(story, tmp_path)


def test_removing_a_members_key_excludes_it_while_connected(tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        key_directory, (a, b, c) = await ring_of(folder, 3, QUICK)
        # c does not learn of it: only the others' lists change.
        own = KeyDirectory(folder / "own")
        for path in key_directory.folder.iterdir():
            (own.folder / path.name).write_text(path.read_text())
        c.transport.security.allowed.directory = own.folder  # type: ignore[attr-defined]
        for path in key_directory.folder.iterdir():
            if f'"{c.me.name}"' in path.read_text():
                path.unlink()
        await until(together(a, b))
        await exchange(a, b)
        heard = len(c.delivered)
        await exchange(a, b)
        assert len(c.delivered) == heard, "the connections to it are closed too"
        assert a.transport.counters["frames_of_removed_keys"]
        for process in (a, b, c):
            process.stop()

    play(story, tmp_path)


def test_a_member_cannot_send_as_another_one(tmp_path: Path) -> None:
    """The key is valid, but the frame names another member: it is dropped and counted."""

    async def story(folder: Path) -> None:
        key_directory = KeyDirectory(folder / "public")
        addresses = free_addresses(3)
        pairs = keys_for(addresses)
        for pair in pairs:
            key_directory.allow(pair)
        a, b = (
            Process(address, key_directory.curve(pair), addresses[:2])
            for address, pair in zip(addresses[:2], pairs[:2], strict=True)
        )
        await until(together(a, b))
        views = a.views, b.views
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        push = context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 0)
        key_directory.curve(pairs[2]).dial(push, a.me.address, 0)
        push.connect(f"tcp://{a.me.address}")
        forger = Codec(
            Member(b.me.name, b.me.incarnation + 1, addresses[2]), "test", 32_768, b"sets"
        )
        me = Member(b.me.name, b.me.incarnation + 1, addresses[2])
        for message in (
            Join((me, a.me), (b.me,), 1 << 40, False),
            Datagram(b"S"),
            Merge(RingId(9, "x", 1), (me,), (a.me,)),
        ):
            await push_all(push, forger.encode(message))
        await until(lambda: a.transport.counters.get("frames_under_false_names") == 3)
        await exchange(a, b)
        assert (a.views, b.views) == views
        push.close()
        context.term()
        for process in (a, b):
            process.stop()

    play(story, tmp_path)


async def push_all(push: zmq.Socket[bytes], frame: bytes) -> None:
    while True:
        try:
            push.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            await asyncio.sleep(0.005)
        else:
            return


def test_attacks_on_the_port_change_no_view(tmp_path: Path) -> None:
    """G15: garbage, half-open connections, wrong mechanisms and wrong keys, all at once."""

    async def story(folder: Path) -> None:
        key_directory, (a, b, c) = await ring_of(folder, 3)
        views = a.views, b.views, c.views
        host, port = a.me.address.split(":")
        half_open = [socket.create_connection((host, int(port))) for _ in range(50)]
        addresses = free_addresses(2)
        foreign = [
            Process(addresses[0], key_directory.curve(make_pair(addresses[0])), [a.me.address]),
            Process(addresses[1], None, [a.me.address]),
        ]
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
        for number in range(200):
            with socket.create_connection((host, int(port))) as garbage:
                garbage.sendall((b"GET / HTTP/1.1\r\n\r\n", greeting, bytes(500))[number % 3])
            if number % 20 == 0:
                await exchange(a, b, c)
        await until(lambda: bool(foreign[0].transport.refusals and foreign[1].transport.refusals))
        await exchange(a, b, c)
        assert (a.views, b.views, c.views) == views
        for one in half_open:
            one.close()
        for process in (a, b, c, *foreign):
            process.stop()

    play(story, tmp_path)


def test_a_handshake_that_breaks_after_a_refusal_puts_no_blame_on_the_peers_keys(
    tmp_path: Path,
) -> None:
    """Of two keys one is old; the owner of the other one refuses this member."""
    key_directory = KeyDirectory(tmp_path / "public")
    address, listening = free_addresses(2)
    for name in (address, listening, listening):
        key_directory.allow(make_pair(name))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = Link(context, listening, key_directory.curve(make_pair(address)))
    for why in (KeyRefused.THEIR_KEY, KeyRefused.KEY, KeyRefused.THEIR_KEY):
        link.dial()
        link._on_refused(why, 0.0)
        link.replace()
    assert link.refusal is KeyRefused.KEY
    link.close(0)
    context.term()


def test_handshakes_that_failed_twice_between_reads_count_once(tmp_path: Path) -> None:
    """A socket is given up once: the second report is from before that."""

    async def story(folder: Path) -> None:
        key_directory = KeyDirectory(folder / "public")
        address, listening = free_addresses(2)
        for name in (address, listening):
            key_directory.allow(make_pair(name))
        listener = Process(listening, key_directory.curve(make_pair(listening)))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        link = Link(context, listening, key_directory.curve(make_pair(address)))
        link.dial()
        monitor = link._monitor
        assert monitor is not None
        await until(lambda: bool(monitor.poll(0)))
        await asyncio.sleep(0.2)  # libzmq retries about every 20 ms
        assert not link.maintain(0.0)
        assert link.refusal is KeyRefused.THEIR_KEY
        assert link.maintain(REDIAL_S)
        link.close(0)
        context.term()
        listener.stop()

    play(story, tmp_path)
