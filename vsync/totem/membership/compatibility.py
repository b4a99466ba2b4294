"""Compatibility of members: the HELLO frame, which every version can read.

Members must agree on the cluster and on sizes, and have a version of the frames and one of the
payloads in common; their time limits must be compatible. The envelope of every frame carries a
hash of the cluster's name and one of the sender's settings, so an incompatible frame is dropped
before anything else is examined, and a joining member cannot disturb a running ring. But a hash
does not reveal values. So a member that drops such a frame sends a *hello* to the address in it, a
few times a second at most: version, cluster and settings in clear. The joining member reads it and
can report the differences, with both values; or, if they are harmless, either side accepts the
other's hash from then on.

The layer above the ring has a say (`Door`): a digest of its own settings goes into the hash, and if
digests differ it judges a *card* in the other's hello, which the ring does not read.

The layout is frozen for all versions: the envelope with zeros for version and tag, kind 1 when it
asks for the receiver's own and 0 when not, then msgpack `[version, cluster, [[name, value], ...],
digest, card]`.  `version` is the oldest one of the frames that the sender reads; the newest is its
setting `wire_version`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgpack

from vsync.errors import ConfigError
from vsync.totem.config import RingConfig
from vsync.totem.events import Hail
from vsync.types import Member
from vsync.wire.codec import Codec, Versions

HELLO_EVERY_S: Final = 0.25
HELLOS_MAX: Final = 32
"""The most hellos within that time, to different addresses: enough for a ring that finds another
one."""
HELLO_BYTES_MAX: Final = 8_192
CARD_BYTES_MAX: Final = 6_000
SETTINGS_MAX: Final = 128
FOREIGN_MEMBERS_MAX: Final = 64

SAME_EVERYWHERE: Final = (
    "frame_bytes_max", "message_bytes_max", "window_frames", "store_frames_max", "wanted_max",
    "members_max",
)  # fmt: skip
"""Settings that one member's frames impose on another; others may differ where compatible."""
_PAYLOAD_VERSIONS: Final = ("payload_version_min", "payload_version")
_RANGES: Final = frozenset((*_PAYLOAD_VERSIONS, "wire_version_min", "wire_version"))

_NAMES: Final = frozenset(field.name for field in fields(RingConfig))
_DERIVED: Final = frozenset(field.name for field in fields(RingConfig) if field.default == 0)
_HEAD: Final = Struct("<BBI8sQBB")
_CRC: Final = Struct("<I")
_CRC_END: Final = 6
_NAME_BYTES: Final = 22  # where the length of the name stands; that of the address follows


FOREIGN: Final = frozenset(("frame_hello", "frame_version", "frame_cluster", "frame_settings"))
"""Drops after which a hello is sent to the sender."""


class Door(Protocol):
    """The comparison by the layer above the ring before two members may hear each other."""

    @property
    def digest(self) -> bytes:
        """Return the digest of everything compared; members with equal ones need not judge."""

    def card(self) -> bytes:
        """Return the card that this member shows now."""

    def refuses(self, other: Member, data: bytes) -> str:
        """Return why the other's card keeps the two out of one ring; empty if it does not."""


class OpenDoor:
    """The door of a ring with no layer above it that compares anything."""

    digest = b""

    def card(self) -> bytes:
        """Nothing is shown."""
        return b""

    def refuses(self, other: Member, data: bytes) -> str:
        """Admit everyone; the other side may decide otherwise."""
        return ""


class Hello(NamedTuple):
    """The content of a hello: a member, its version, cluster and settings, and its door's card."""

    sender: Member
    version: int
    cluster: str
    settings: Mapping[str, int]
    digest: bytes = b""
    card: bytes = b""

    @property
    def versions(self) -> Versions:
        """The frame versions that the member reads."""
        return Versions(self.version, self.settings.get("wire_version", self.version))

    def encode(self, *, asks: bool = False) -> bytes:
        """The frame; one that `asks` is answered with the receiver's own hello."""
        name, address = self.sender.name.encode(), self.sender.address.encode()
        head = _HEAD.pack(0, asks, 0, bytes(8), self.sender.incarnation, len(name), len(address))
        settings = sorted(self.settings.items())
        body = msgpack.packb([self.version, self.cluster, settings, self.digest, self.card])
        rest = head[_CRC_END:] + name + address + bytes(body)
        return head[:2] + _CRC.pack(crc32(rest, crc32(head[:2]))) + rest


def read_hello(frame: bytes) -> Hello | None:
    """Decode a frame of version 0; None if it is another one or damaged. Checks lengths first."""
    if not _HEAD.size < len(frame) <= HELLO_BYTES_MAX or frame[0] or frame[1] > 1:
        return None
    _, _, crc, _, incarnation, name_size, address_size = _HEAD.unpack_from(frame)
    if crc != crc32(memoryview(frame)[_CRC_END:], crc32(frame[:2])):
        return None
    middle = _HEAD.size + name_size
    start = middle + address_size
    try:
        sender = Member(
            frame[_HEAD.size : middle].decode(), incarnation, frame[middle:start].decode()
        )
        version, cluster, pairs, digest, card = msgpack.unpackb(
            frame[start:], max_str_len=1_024, max_bin_len=CARD_BYTES_MAX, max_map_len=0,
            max_ext_len=0, max_array_len=SETTINGS_MAX,
        )  # fmt: skip
        settings = {name: value for name, value in pairs}  # noqa: C416 - pairs may be anything
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    good = type(version) is int and type(cluster) is str and bool(sender.name)
    good = good and type(digest) is bytes and type(card) is bytes
    if not good or not all(type(k) is str and type(v) is int for k, v in settings.items()):
        return None
    # These texts end up in a log, and may come from anyone.
    if not all(map(str.isprintable, (cluster, sender.name, sender.address, *settings))):
        return None
    return Hello(sender, version, cluster, settings, digest, card)


def settings_hash(settings: Mapping[str, int], digest: bytes = b"") -> bytes:
    """Hash of a member's settings and its door's, four bytes, as each of its frames carries it."""
    text = "\n".join(f"{name}={value}" for name, value in sorted(settings.items()))
    data = text.encode() + b"\n" + digest
    return hashlib.blake2b(data, digest_size=4, person=b"vsync.set").digest()


def settings_of(config: RingConfig) -> dict[str, int]:
    return asdict(config)


class Handshake:
    """Exchanges hellos with incompatible members, and finds what differs.  No I/O."""

    def __init__(
        self, me: Member, cluster: str, config: RingConfig, codec: Codec, door: Door
    ) -> None:
        self.mine = Hello(me, config.wire_version_min, cluster, settings_of(config), door.digest)
        self.refused: dict[str, tuple[Member, str]] = {}
        """By name: an incompatible member, and the difference in one sentence."""
        self.foreign_version = 0
        """Version of the last frame with none of this member's versions."""
        self.foreign_frames = 0
        """The number of those since a member was accepted that may have sent them; at most one in
        each HELLO_EVERY_S counts, because a ring's data may arrive long before its hello."""
        self._counts_from = 0.0
        self._codec, self._door = codec, door
        self._accepted: list[tuple[Member, Versions]] = []
        self._sent_until: dict[tuple[str, bool], float] = {}

    def on_foreign(self, frame: bytes, now: float) -> Hail | None:
        """A frame was dropped for version, cluster or settings; the hello to send, if any."""
        oldest, newest = self.mine.versions
        if not oldest <= frame[0] <= newest:
            self.foreign_version = frame[0]
            if now >= self._counts_from:
                self._counts_from = now + HELLO_EVERY_S
                self.foreign_frames += 1
        start = _HEAD.size + frame[_NAME_BYTES]
        address = frame[start : start + frame[_NAME_BYTES + 1]]
        return self._hello(address.decode("ascii", "replace"), now, asks=True)

    def on_hello(self, frame: bytes, now: float) -> tuple[str, Hail | None]:
        """A hello came in: the counter for the result, and the hello to send, if any.

        A hello that asks is answered: its sender dropped frames of this member.
        """
        hello = read_hello(frame)
        if hello is None:
            return "hello_damaged", None
        if hello.sender.name == self.mine.sender.name:
            return "name_of_mine", None
        self.refused.pop(hello.sender.name, None)
        answer = self._hello(hello.sender.address, now, asks=False) if frame[1] else None
        reason = self.difference(hello)
        if reason:
            if len(self.refused) >= FOREIGN_MEMBERS_MAX:
                self.refused.clear()
            self.refused[hello.sender.name] = hello.sender, reason
            return "hello_refused", answer
        if hello.digest != self.mine.digest and self._door.refuses(hello.sender, hello.card):
            return "hello_refused", answer
        self._codec.accept(settings_hash(hello.settings, hello.digest), hello.versions)
        self.foreign_frames = 0
        self._accepted.append((hello.sender, hello.versions))
        return "hello_accepted", answer

    def take_accepted(self) -> list[tuple[Member, Versions]]:
        """Return the members accepted since the last call, and the versions they read."""
        accepted, self._accepted = self._accepted, []
        return accepted

    def _hello(self, address: str, now: float, *, asks: bool) -> Hail | None:
        """Rate limit, per address and in all: most addresses may be forged."""
        sent_until, whom = self._sent_until, (address, asks)
        if now < sent_until.get(whom, 0.0):
            return None
        if whom not in sent_until and len(sent_until) >= HELLOS_MAX:
            self._sent_until = sent_until = {
                one: until for one, until in sent_until.items() if now < until
            }
            if len(sent_until) >= HELLOS_MAX:
                return None
        sent_until[whom] = now + HELLO_EVERY_S
        return Hail(address, self.mine._replace(card=self._door.card()).encode(asks=asks))

    def difference(self, theirs: Hello) -> str:
        """The first incompatibility, as a sentence with both values; "" if there is none."""
        mine, who = self.mine, f"the member at {theirs.sender.address}"
        if theirs.cluster != mine.cluster:
            return (
                f"{who} is of cluster '{theirs.cluster}', and this one was started for cluster "
                f"'{mine.cluster}'; give both the same name, or other addresses"
            )
        if not theirs.versions.fits(mine.versions):
            return (
                f"{who} runs another version of the ring protocol ({theirs.versions}) than this "
                f"one (version {mine.versions}); run the same release on all members"
            )
        # The member that knows a setting which the other's release lacks judges it: at its default
        # a member behaves like releases without the setting.
        for name in sorted(mine.settings.keys() - theirs.settings.keys()):
            value, default = mine.settings[name], _default_of(mine.settings, name)
            if value != default:
                return (
                    f"{who} is of a release without the setting {name}, which is {value} here; "
                    f"leave it at {default}, or run the same release on all members"
                )
        oldest, newest = (theirs.settings.get(name, 1) for name in _PAYLOAD_VERSIONS)
        mine_oldest, mine_newest = (mine.settings[name] for name in _PAYLOAD_VERSIONS)
        if not (oldest <= mine_newest and mine_oldest <= newest):
            return (
                f"{who} reads payloads of the versions {oldest} to {newest}, and this one of "
                f"{mine_oldest} to {mine_newest}; run releases that have a version in common"
            )
        common = mine.settings.keys() & theirs.settings.keys()
        for name in (name for name in SAME_EVERYWHERE if name in common):
            if theirs.settings[name] != mine.settings[name]:
                return (
                    f"{who} runs with {name} {theirs.settings[name]}, and this one with "
                    f"{mine.settings[name]}; all members need the same"
                )
        for name in mine.settings:
            if name not in common or name in _RANGES:
                continue
            value = theirs.settings[name]
            if value == mine.settings[name]:
                continue
            if problem := _clash(mine.settings, name, value) or _clash(
                theirs.settings, name, mine.settings[name]
            ):
                return (
                    f"{who} runs with {name} {value}, and this one with {mine.settings[name]}, "
                    f"which do not go together: {problem}"
                )
        return ""


def _default_of(settings: Mapping[str, int], name: str) -> int:
    """The default of a setting, given the other settings."""
    others = {key: value for key, value in settings.items() if key != name}
    return settings_of(RingConfig(**others))[name]


def _clash(settings: Mapping[str, int], name: str, value: int) -> str:
    """The rule that one value of another member breaks among `settings`; "" if none."""
    if not value and name in _DERIVED:
        return f"{name} must be more than 0"  # the record would take it for "derive it"
    # A newer release has settings that this one does not know.
    known = {key: given for key, given in settings.items() if key in _NAMES}
    try:
        RingConfig(**{**known, name: value})
    except ConfigError as error:
        return str(error)
    return ""
