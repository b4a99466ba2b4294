"""One member in one process, without ring, store and sockets: gateway, machine, outbox.

The work of a member's loop in the fewest lines: commands travel as a real blob, and the durable
mark moves only when a test says so.
"""

from typing import ClassVar

from broker.access import passwords
from broker.access.access import Access
from broker.access.backends import Backends
from broker.amqp.fields import Table, Value
from broker.frontend.client import Client
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.machine.command_codec import pack_blob, unpack_blob
from broker.machine.commands import (
    ACTIVATE,
    DEFINE,
    OK,
    Activate,
    ActiveMember,
    Command,
    Define,
)
from broker.machine.effects import Effect
from broker.machine.machine import Machine
from broker.machine.version import MACHINE_VERSION
from broker.options.access import SOURCES
from tests.support.amqp_peer import ServerMethod, method, methods_in, opening, publish

PERMISSIONS = ("configure", "write", "read")


class Loop:
    """Everything is durable at once, unless `durable` is set to False."""

    def __init__(
        self,
        users: dict[str, str] | None = None,
        cert_login_from: str = SOURCES[0],
        anonymous_user: str = "",
        backends: Backends | None = None,
    ) -> None:
        self.names = 0
        self.machine = Machine("a")
        self.log: list[str] = []
        self._anonymous_user, self._backends = anonymous_user, backends
        self.gateway, self.outbox = self.make_parts(cert_login_from)
        self.position = 0
        self.epoch = 0
        self.blob_no = 0
        self.durable = True
        self.now = 0.0
        self.confirmed: list[int] = []
        self.applied: list[tuple[Command, int]] = []
        self.activate(fresh=True)
        self.outbox.unfence()
        for user, password in (users or {}).items():
            self.define("user", "", user, self.hashed(password))
            self.define("permission", "/", user, dict.fromkeys(PERMISSIONS, ".*"))

    def make_parts(self, cert_login_from: str) -> tuple[Gateway, Outbox]:
        """The gateway and the outbox of this member."""
        gateway = Gateway(
            "a", cluster="test", access=Access(lambda: self.machine, backends=self._backends),
            new_name=self._new_name,
            log=lambda _, text: self.log.append(text), cert_login_from=cert_login_from,
            anonymous_user=self._anonymous_user,
        )  # fmt: skip
        return gateway, Outbox(gateway)

    @staticmethod
    def hashed(password: str, *tags: str) -> Table:
        """The definition of a user."""
        return {
            "password_hash": passwords.hashed(password, b"salt"),
            "hashing_algorithm": passwords.DEFAULT_ALGORITHM,
            "tags": tags,
        }

    def define(self, what: str, vhost: str, name: str, body: Table | None) -> None:
        """Define something as an operator at this member."""
        self.apply(self.gateway.session, Define(DEFINE, 0, "op", what, vhost, name, body))
        assert self.applied[-1][1] == OK, self.applied[-1]

    def _new_name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def activate(self, *, fresh: bool) -> None:
        """Activate a primary view in which the member's session continues, or a new one begins."""
        self.epoch += 1
        members = (ActiveMember("a", 1, fresh),)
        self.apply(0, Activate(ACTIVATE, self.epoch, members, False, ("a",), "id", MACHINE_VERSION))
        self.blob_no = self.machine.sessions["a"].last_blob_no

    def apply(self, session: int, command: Command) -> int:
        self.position += 1
        outcome = self.machine.apply(self.position, session, self.position * 1000, command)
        self.applied.append((command, outcome))
        effects: list[tuple[int, Effect]] = [
            (self.position, effect) for effect in self.machine.take_effects()
        ]
        self.outbox.effects(effects)
        return outcome

    def turn(self) -> None:
        """Run until nothing is under way."""
        while True:
            self.gateway.follow_definitions()
            self.write()
            if not self.gateway.has_work:
                break
            commands = self.gateway.take_commands()
            if not commands:
                continue
            self.blob_no += 1
            blob = unpack_blob(pack_blob(self.gateway.session, self.blob_no, 0, commands))
            assert self.machine.accept_blob("a", blob.session, blob.blob_no)
            for command in blob.commands:
                self.apply(blob.session, command)
            if self.durable:
                self.outbox.release(self.position)

    def write(self) -> None:
        self.confirmed += self.outbox.flush()
        for client in self.gateway.take_writable():
            Peer.of[client].receive()

    def settle(self) -> None:
        """Make everything durable now."""
        self.outbox.release(self.position)
        self.turn()

    def connect(self, **options: str | int | Table | None) -> "Peer":
        """A client that has sent everything that opens its connection; the replies wait for it."""
        peer = Peer(self)
        peer.received = peer.send(opening(**options))  # type: ignore[arg-type]
        return peer


class Peer:
    """A client that reads everything it is sent."""

    of: ClassVar[dict[Client, "Peer"]] = {}

    def __init__(self, loop: Loop, *, is_local: bool = True) -> None:
        self.loop = loop
        self.client = loop.gateway.connect("127.0.0.1:5000", is_local, loop.now)
        self.received: list[ServerMethod] = []
        self.reads = True
        Peer.of[self.client] = self

    def receive(self) -> None:
        if not self.reads:
            return
        data = bytes(self.client.take_output())
        while self.client.connection.ahead:
            data += self.client.take_output()
        if data[:4] != b"AMQP":
            self.received += methods_in(data)

    def send(self, *data: bytes) -> list[ServerMethod]:
        """Send this, let the member work, and return what it sent since the last call."""
        for part in data:
            self.loop.gateway.data_received(self.client, part, self.loop.now)
        self.loop.turn()
        return self.take()

    def take(self) -> list[ServerMethod]:
        """Return what it received since the last call."""
        received, self.received = self.received, []
        return received

    def call(self, channel: int, name: str, *args: Value) -> list[tuple[object, ...]]:
        return [(one.method, *one.args) for one in self.send(method(channel, name, *args))]

    def send_method(self, name: str, *args: Value) -> list[ServerMethod]:
        """Send a method on channel 1; return the replies, contents included."""
        return self.send(method(1, name, *args))

    def open(self, *channels: int) -> "Peer":
        for channel in channels:
            self.take()
            assert self.call(channel, "channel.open") == [("channel.open-ok",)]
        return self

    def declare(self, channel: int, queue: str, *, durable: bool = False) -> None:
        received = self.call(
            channel, "queue.declare", queue, False, durable, False, False, False, {}
        )
        assert received == [("queue.declare-ok", queue, 0, 0)]

    def publish(self, channel: int, queue: str, *bodies: bytes) -> list[ServerMethod]:
        return self.send(*(publish(channel, "", queue, body) for body in bodies))
