"""Discovery of the other members' ring addresses, configured or announced by multicast.

Discovery only suggests addresses to connect to. The ring decides membership, so a wrong or forged
address costs one connection attempt. An announcement is one datagram: magic, version, cluster tag,
member name, ring address, checksum. Malformed datagrams are counted and dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from vsync.io.transport import TransportError, parse_address

MAGIC: Final = b"VSYNCBCN"
VERSION: Final = 1
PORT: Final = 5409
EAGER_S: Final = 0.5
EAGER_FOR_S: Final = 10.0
STEADY_S: Final = 2.0
LOOK_UP_S: Final = 5.0
ADDRESSES_MAX: Final = 256
"""The most addresses that one process accepts, whatever a forger announces."""

_HEAD: Final = struct.Struct("<8sB8sBB")  # magic, version, tag, bytes of name, bytes of address
_CRC: Final = struct.Struct("<I")

TOLD_AFTER_S: Final = 5.0
"""A peer out of reach for this long is reported; members are started one after the other."""

Found = Callable[[str], None]
Reached = Callable[[str], bool]
"""Whether there is a connection to an address."""
Warn = Callable[[str], None]


class Discovery(Protocol):
    """Calls `found` with each new address of the cluster, on the loop's thread, until `stop`."""

    def start(self, found: Found) -> None: ...

    def stop(self) -> None: ...

    def lack(self, mine: str, reached: Reached) -> str:
        """Return who cannot be reached, and where this member, `mine`, listens; "" for nobody."""


class Lacks:
    """Decides when a waiting member reports what it lacks: if it lasts, or changes. Pure."""

    def __init__(self) -> None:
        self.told = ""
        self._now, self._since = "", 0.0

    def news(self, now: float, lack: str) -> str:
        """Return what is lacking if it is to be reported now; "" for nothing, or nothing new."""
        if lack != self._now:
            self._now, self._since = lack, now
        if lack == self.told or now - self._since < TOLD_AFTER_S:
            return ""
        self.told = lack
        return lack


def _unreached(who: Iterable[str], mine: str) -> str:
    names = ", ".join(who)
    return f"there is no connection to {names}; {_listens(mine)}" if names else ""


def _listens(mine: str) -> str:
    return f"this member listens at {mine.replace(',', ' and ')}"


def look_up(address: str, mine: str = "") -> str:
    """Return an address with its host as a number; blocks. Raises TransportError.

    A host may have several addresses. Members listen on one, so the result is of the family of
    `mine`, the ring address of this member, or IPv4; if there is none of that family, another one.
    """
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"the host of ring address {address} is not known to this machine: {why}"
        raise TransportError(message) from None
    family = socket.AF_INET6 if mine.startswith("[") else socket.AF_INET
    number = str(min(found, key=lambda one: one[0] != family)[4][0])  # the first of them
    return f"[{number}]:{port}" if ":" in number else f"{number}:{port}"


class StaticPeers:
    """Configured addresses. Raises TransportError for a malformed one.

    Names are looked up on a separate thread, because a name server may take seconds and libzmq
    would do the lookup on the one thread that serves all links. Lookups are repeated: a name may
    become known later, or point to another machine.
    """

    def __init__(
        self, addresses: Iterable[str], warn: Warn, look_up: Callable[[str], str] = look_up
    ) -> None:
        self.addresses = tuple(dict.fromkeys(addresses))
        self._names = [one for one in self.addresses if not _is_number(parse_address(one)[0])]
        self._warn, self._look_up = warn, look_up
        self._stopped = threading.Event()
        self._unknown: set[str] = set()
        self._numbers: dict[str, str] = {}  # of the names that are known
        self._found: set[str] = set()

    def start(self, found: Found) -> None:
        for address in self.addresses:
            if address not in self._names:
                self._suggest(address, found)
        if self._names:
            given = asyncio.get_running_loop(), found
            threading.Thread(target=self._run, args=given, name="ring names", daemon=True).start()

    def stop(self) -> None:
        """Start no further lookup; a lookup in progress is not waited for."""
        self._stopped.set()

    def lack(self, mine: str, reached: Reached) -> str:
        own, missing, others = mine.split(","), [], 0
        for given in self.addresses:
            address = self._numbers.get(given, "") if given in self._names else given
            others += address not in own
            if address in own or (address and reached(address)):
                continue
            place = address or "whose host is not known to this machine"
            missing.append(given if given == address else f"{given} ({place})")
        if not others:
            return f"no address of another member is configured; {_listens(mine)}"
        return _unreached(missing, mine)

    def _run(self, loop: asyncio.AbstractEventLoop, found: Found) -> None:
        while not self._stopped.is_set():
            for name in self._names:
                address, problem = "", ""
                try:
                    address = self._look_up(name)
                except TransportError as error:
                    problem = str(error)
                try:
                    loop.call_soon_threadsafe(self._looked_up, name, address, problem, found)
                except RuntimeError:  # the loop is closed
                    return
            self._stopped.wait(LOOK_UP_S)

    def _looked_up(self, name: str, address: str, problem: str, found: Found) -> None:
        if self._stopped.is_set():
            return
        if problem:
            if name not in self._unknown:
                self._unknown.add(name)
                self._warn(f"{problem}; it is looked up again every {LOOK_UP_S:g} s")
            return
        if name in self._unknown:
            self._unknown.discard(name)
            self._warn(f"ring address {name} is known now: {address}")
        self._numbers[name] = address
        self._suggest(address, found)

    def _suggest(self, address: str, found: Found) -> None:
        if address not in self._found and len(self._found) < ADDRESSES_MAX:
            self._found.add(address)
            found(address)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class Announcement(NamedTuple):
    """Announcement of one member."""

    tag: bytes
    name: str
    address: str

    def encode(self) -> bytes:
        name, address = self.name.encode(), self.address.encode()
        body = _HEAD.pack(MAGIC, VERSION, self.tag, len(name), len(address)) + name + address
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, datagram: bytes) -> Announcement | str:
        """Return the announcement, or the counter for its fault. Lengths are checked first."""
        if len(datagram) < _HEAD.size + _CRC.size:
            return "beacon_short"
        magic, version, tag, name_bytes, address_bytes = _HEAD.unpack_from(datagram)
        if magic != MAGIC:
            return "beacon_magic"
        if version != VERSION:
            return "beacon_version"
        end = _HEAD.size + name_bytes + address_bytes
        if len(datagram) != end + _CRC.size:
            return "beacon_length"
        if _CRC.unpack_from(datagram, end)[0] != zlib.crc32(datagram[:end]):
            return "beacon_checksum"
        split = _HEAD.size + name_bytes
        try:
            name, address = datagram[_HEAD.size : split].decode(), datagram[split:end].decode()
            host, port = parse_address(address)
        except (UnicodeDecodeError, TransportError):
            return "beacon_address"
        if not port or host in ("0.0.0.0", "::"):
            return "beacon_address"
        return cls(tag, name, address)


def cluster_tag(cluster: str) -> bytes:
    return hashlib.blake2b(cluster.encode(), digest_size=8, person=b"vsync.beacon").digest()


def default_group(cluster: str) -> str:
    """Return a group of the organisation-local scope; clusters rarely share one."""
    high, low = cluster_tag(cluster)[:2]
    return f"239.192.{high}.{low}"


class Beacon:
    """Announces this member, often at first and then steadily, and receives the others' datagrams.

    Without multicast it calls `warn`, once for each kind of error, and keeps trying: the network
    may come up later, and configured addresses work in any case. `interface` is the IPv4 address of
    the network to use; TTL 1 keeps the datagrams on it.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        address: str,
        warn: Warn,
        *,
        interface: str = "127.0.0.1",
        group: str | None = None,
        port: int = PORT,
        eager_for_s: float = EAGER_FOR_S,
    ) -> None:
        self._mine = Announcement(cluster_tag(cluster), name, address)
        self._datagram = self._mine.encode()
        assert Announcement.decode(self._datagram) == self._mine, f"cannot announce {self._mine}"
        self._warn = warn
        self._interface = interface
        self._group = group if group is not None else default_group(cluster)
        self._port = port
        self._eager_for_s = eager_for_s
        self._known = {address: None}
        self._warned: set[str] = set()
        self._found: Found | None = None
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self.counters: dict[str, int] = {}

    def start(self, found: Found) -> None:
        """Start, on the loop's thread, once."""
        assert self._found is None, "a beacon runs once"
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._tick()

    def stop(self) -> None:
        """Stop announcing and receiving. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def lack(self, mine: str, reached: Reached) -> str:
        others = [one for one in self._known if one != self._mine.address]
        if not others:
            where = f"{self._group}:{self._port} on {self._interface}"
            return f"nobody was found by multicast ({where}); {_listens(mine)}"
        return _unreached([one for one in others if not reached(one)], mine)

    def _tick(self) -> None:
        if self._socket is None:
            self._open()
        if self._socket is not None:
            self._announce(self._socket)
        eager = self._loop.time() - self._began < self._eager_for_s
        self._timer = self._loop.call_later(EAGER_S if eager else STEADY_S, self._tick)

    def _open(self) -> None:
        try:
            self._socket = open_multicast(self._group, self._port, self._interface)
        except OSError as error:
            self._failed("listen", error)
            return
        self._loop.add_reader(self._socket.fileno(), self._readable, self._socket)

    def _announce(self, opened: socket.socket) -> None:
        try:
            opened.sendto(self._datagram, (self._group, self._port))
        except OSError as error:
            self._failed("announce", error)
        else:
            self._count("beacons_sent")

    def _readable(self, opened: socket.socket) -> None:
        try:
            data = opened.recv(2_048)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed("hear", error)
            return
        self.received(data)

    def received(self, datagram: bytes) -> None:
        """Take one datagram off the wire."""
        announced = Announcement.decode(datagram)
        if isinstance(announced, str):
            self._count(announced)
        elif announced.tag != self._mine.tag:
            self._count("beacon_other_cluster")
        elif announced.address not in self._known:
            if len(self._known) >= ADDRESSES_MAX:
                self._count("beacon_too_many")
                return
            self._known[announced.address] = None
            self._count("beacon_found")
            if self._found is not None:
                self._found(announced.address)

    def _failed(self, what: str, error: OSError) -> None:
        self._count(f"beacon_cannot_{what}")
        if what not in self._warned:
            self._warned.add(what)
            self._warn(
                f"cannot {what} by multicast ({self._group}:{self._port} on {self._interface}): "
                f"{error.strerror or error}; only configured addresses will be found"
            )

    def _count(self, code: str) -> None:
        self.counters[code] = self.counters.get(code, 0) + 1


def open_multicast(group: str, port: int, interface: str) -> socket.socket:
    """Open a socket that sends to the group and receives from it on one interface.

    Other members on the same machine may use the same port. Raises OSError.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound to the group, so that unicast to the same port is not mistaken for it.
        opened.bind((group, port))
        local = socket.inet_aton(interface)
        join = socket.inet_aton(group) + local
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    except OSError:
        opened.close()
        raise
    return opened
