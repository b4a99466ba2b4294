"""Encoding and decoding of frames. Lengths are checked first; every fault is one `FrameError`.

Every frame begins with an envelope: version, kind, checksum over all the rest, cluster tag and
settings (4 bytes each), incarnation of the sender, lengths of its name and address, name, address.
It is checked before anything else is looked at. Frames of kinds that belong to a ring then have the
ring block (seq, incarnation and name of the representative). Token and data use fixed struct
headers; join, merge and commit are msgpack under strict limits (`membership_codec`).

The codec keeps two bounded caches (envelopes and ring blocks), because the same few recur in every
frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, cast

from xxhash import xxh3_64_intdigest

from vsync.errors import FrameError
from vsync.types import Guarantee, Member, RingId
from vsync.wire.membership_codec import (
    MEMBERS_MAX,
    RING_SEQ_MAX,
    commit_body,
    join_body,
    merge_body,
    read_commit,
    read_join,
    read_merge,
)
from vsync.wire.messages import (
    NOBODY,
    Alive,
    CommitToken,
    Content,
    Data,
    Datagram,
    FrameKind,
    Join,
    Merge,
    Message,
    Pace,
    Probe,
    Report,
    Token,
    Wake,
)

WIRE_VERSION_MIN = 1
WIRE_VERSION = 1
"""The oldest and the newest version of the frames that this release reads and writes. A release
that changes a frame raises the second, writes the older layout into frames of the older version,
and goes by the first byte of each frame that it reads; the next release may then raise the first.
"""
HELLO_VERSION = 0  # of the one frame that every version can read, see `compatibility`
WANTED_MAX = 1024
CONTROL_BYTES_MAX = 1 << 20
"""Room for the joins, commits and tokens of a ring at its limits, however small its frames are: a
commit in which each of 64 members is obliged to all needs a quarter of it."""
COUNT_MAX = 1 << 62
"""No correct hop, sequence number or backlog reaches it. A larger one would, one step later, not
fit the frame that this member must send."""
SENT_MAX = 1 << 31
ITEMS_MAX = 65536
_MEMO_MAX = 1024
_new = tuple.__new__  # half the cost of calling the class

_HEAD = Struct("<BBI8sQBB")  # version kind checksum tag incarnation name address
_HEAD_BYTES = _HEAD.size
_SUM = Struct("<I")
_SUM_MASK = 0xFFFFFFFF
_START = Struct("<HI")  # version and kind, checksum
_SUM_END = 6
_SMALL = 2048  # bytes; below this copying is cheaper than avoiding the copy
TAG_BYTES = 4
_NAME_BYTES = 22  # offset of the length of the sender's name; that of its address follows
_RING = Struct("<QQB")
# hop seq aru aru_by sent backlog recovering marks wanted everywhere lease limit timeout
_TOKEN = Struct("<QQQHIQBHHQIII")
_DATA = Struct("<QHBBI")  # seq origin content guarantee items
_FRAGMENT = Struct("<QII")
_REPORT = Struct("<QQQQQ")  # hop held safe mark covers

# An enum's attribute is ten times as slow.
_TOKEN_KIND, _REPORT_KIND = FrameKind.TOKEN, FrameKind.REPORT
_DATA_KIND, _EARLY_KIND = FrameKind.DATA, FrameKind.EARLY
_CONTENTS = {int(c): c for c in Content}
_GUARANTEES = {int(g): g for g in Guarantee}
MEMBERSHIP_KINDS = frozenset(
    (FrameKind.JOIN, FrameKind.COMMIT, FrameKind.MERGE, FrameKind.PROBE, FrameKind.ALIVE)
)
"""Frames that reach members outside the sender's ring; the others stay within it."""


class Versions(NamedTuple):
    """Versions of the frames that a member reads and writes, from the oldest to the newest."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        one = self.oldest == self.newest
        return str(self.newest) if one else f"{self.oldest} to {self.newest}"

    def fits(self, other: Versions) -> bool:
        """Whether the two have a version in common."""
        return self.oldest <= other.newest and other.oldest <= self.newest


OF_THIS_RELEASE = Versions(WIRE_VERSION_MIN, WIRE_VERSION)


class Envelope(NamedTuple):
    """The checked head of a frame: kind, sender, start of the body, versions the sender reads."""

    kind: FrameKind
    sender: Member
    start: int
    versions: Versions


_Opened = dict[int, tuple[Envelope, int]]
"""By kind and version: the envelope of one sender's frames, and the seeds of their checksums."""


def cluster_tag(cluster: str) -> bytes:
    """The 4 bytes that keep clusters apart on a shared network; 4 of the settings follow."""
    return hashlib.blake2b(cluster.encode(), digest_size=TAG_BYTES, person=b"vsync").digest()


def checksum(frame: bytes, start: int) -> int:
    """The expected checksum of a frame whose body begins at `start`."""
    return xxh3_64_intdigest(frame[start:], _seed(frame[:2], frame[_SUM_END:start])) & _SUM_MASK


def _seed(start: bytes, identity: bytes) -> int:
    """The hash of everything ahead of the body except the checksum: the seed of the body's hash."""
    return xxh3_64_intdigest(start + identity)


def claimed_name(frame: bytes) -> bytes:
    """The sender's name as the frame has it, unchecked; empty when it is too short."""
    return frame[_HEAD.size : _HEAD.size + frame[_NAME_BYTES]] if len(frame) > _HEAD.size else b""


@lru_cache(_MEMO_MAX)
def ring_block(ring: RingId) -> bytes:
    """The identity of a ring as every frame of that ring carries it."""
    rep = ring.rep.encode()
    return _RING.pack(ring.seq, ring.rep_incarnation, len(rep)) + rep


def data_body(
    block: bytes,
    seq: int,
    origin: int,
    content: Content,
    guarantee: Guarantee,
    items: Sequence[bytes],
) -> bytes:
    """A data frame without its envelope, as stored, resent and, in recovery, wrapped."""
    count = len(items)
    head = _DATA.pack(seq, origin, content, guarantee, count)
    lengths = _lengths(count).pack(*map(len, items))
    return b"".join((block, head, lengths, *items))


def data_overhead(block: bytes) -> int:
    """Bytes of a data body that are not items."""
    return len(block) + _DATA.size


ITEM_OVERHEAD = 4
FRAGMENT_HEAD_BYTES = _FRAGMENT.size


def fragment_head(number: int, index: int, count: int) -> bytes:
    return _FRAGMENT.pack(number, index, count)


def read_fragment_head(head: bytes) -> tuple[int, int, int]:
    """(payload number, index, count) of a fragment; the length was checked on arrival."""
    number, index, count = _FRAGMENT.unpack(head)
    return number, index, count


@lru_cache(_MEMO_MAX)
def _lengths(count: int) -> Struct:
    return Struct(f"<{count}I")


@lru_cache(_MEMO_MAX)
def _quads(count: int) -> Struct:
    return Struct(f"<{count}Q")


def token_body(token: Token) -> bytes:
    ring, hop, seq, aru, aru_by, sent, backlog, recovering, marks, wanted, pace, everywhere = token
    shown, asked = len(marks), len(wanted)
    head = _TOKEN.pack(
        hop, seq, aru, aru_by, sent, backlog, recovering, shown, asked, everywhere, *pace
    )
    return b"".join((ring_block(ring), head, _quads(shown + asked).pack(*marks, *wanted)))


def report_body(report: Report) -> bytes:
    return ring_block(report.ring) + _REPORT.pack(*report[1:])


def wire_bytes_max(frame_bytes_max: int) -> int:
    """The longest possible frame: wrapped frames and datagrams are longer than plain ones."""
    return max(2 * frame_bytes_max, CONTROL_BYTES_MAX) + 2048


class Codec:
    """Encodes as one member of one cluster, and decodes frames of other members of that cluster.

    `settings` is the hash of the member's settings (`compatibility`); a reader that is not a member
    has none, and decodes frames regardless of their sender's settings. The codec reads all of its
    `versions`, and writes the oldest until `write` changes that.
    """

    def __init__(
        self,
        me: Member,
        cluster: str,
        frame_bytes_max: int,
        settings: bytes | None,
        versions: Versions = OF_THIS_RELEASE,
    ) -> None:
        name, address = me.name.encode(), me.address.encode()
        if not 0 < len(name) < 256 or not me.name.isprintable() or len(address) > 255:
            raise FrameError("bad_identity", repr(me))
        own = bytes(TAG_BYTES) if settings is None else settings
        self.tag = cluster_tag(cluster) + own
        self.versions = versions
        self._oldest, self._newest = versions
        self._accepted = None if settings is None else {own: versions}
        self.bytes_max = wire_bytes_max(frame_bytes_max)
        head = _HEAD.pack(0, 0, 0, self.tag, me.incarnation, len(name), len(address))
        self._identity = head[_SUM_END:] + name + address
        self.envelope_bytes = _SUM_END + len(self._identity)
        self.written = self.written_outside = 0
        self.write(versions.oldest, versions.oldest)
        self._opened: dict[bytes, _Opened] = {}
        self._rings: dict[bytes, RingId] = {}

    def accept(self, settings: bytes, versions: Versions) -> None:
        """Also decode frames of members with these settings, which are compatible."""
        if self._accepted is not None and len(self._accepted) < _MEMO_MAX:
            self._accepted[settings] = versions

    def write(self, version: int, outside: int) -> None:
        """From now on write frames of the ring in this version, and frames that also go outside of
        it in the other one."""
        if (version, outside) == (self.written, self.written_outside):
            return
        self.written, self.written_outside = version, outside
        # All frames of one kind start their checksum from the same value.
        self._starts: dict[FrameKind, tuple[bytes, int]] = {}
        for kind in FrameKind:
            start = bytes((outside if kind in MEMBERSHIP_KINDS else version, kind))
            self._starts[kind] = start, _seed(start, self._identity)

    # -- out ---------------------------------------------------------------------------------

    def frame(self, kind: FrameKind, body: bytes) -> bytes:
        """Put a body into an envelope."""
        start, seed = self._starts[kind]
        given = _SUM.pack(xxh3_64_intdigest(body, seed) & _SUM_MASK)
        return b"".join((start, given, self._identity, body))

    def data_frame(self, body: bytes) -> bytes:
        """A stored data body, ready to be sent by this member."""
        return self.frame(_DATA_KIND, body)

    def early_frame(self, body: bytes) -> bytes:
        """The same, sent while the token stays here."""
        return self.frame(_EARLY_KIND, body)

    def encode(self, message: Message) -> bytes:
        match message:  # most frequent first
            case Token():
                return self.frame(_TOKEN_KIND, token_body(message))
            case Report():
                return self.frame(_REPORT_KIND, report_body(message))
            case Data():
                return self.frame(_DATA_KIND, message.body)
            case Join():
                return self.frame(FrameKind.JOIN, join_body(message))
            case CommitToken():
                return self.frame(FrameKind.COMMIT, ring_block(message.ring) + commit_body(message))
            case Merge():
                return self.frame(FrameKind.MERGE, ring_block(message.ring) + merge_body(message))
            case Wake():
                return self.frame(FrameKind.WAKE, ring_block(message.ring))
            case Probe():
                return self.frame(FrameKind.PROBE, b"")
            case Alive():
                return self.frame(FrameKind.ALIVE, b"")
            case Datagram():
                return self.frame(FrameKind.DIRECT, message.payload)

    # -- in ----------------------------------------------------------------------------------

    def open(self, frame: bytes) -> Envelope:
        """Check the envelope.  Raises `FrameError`.  The body is not looked at."""
        size = len(frame)
        if size < _HEAD_BYTES:
            raise FrameError("frame_short")
        if size > self.bytes_max:
            raise FrameError("frame_long")
        code, given = _START.unpack_from(frame)
        start: int = _HEAD_BYTES + frame[_NAME_BYTES] + frame[_NAME_BYTES + 1]
        opened = self._opened.get(frame[_SUM_END:start])
        found = None if opened is None else opened.get(code)
        if found is None:
            found = self._open_first(frame, start)
        envelope, seed = found
        body = frame[start:] if size < _SMALL else memoryview(frame)[start:]
        if xxh3_64_intdigest(body, seed) & _SUM_MASK != given:
            raise FrameError("frame_checksum")
        return envelope

    def _open_first(self, frame: bytes, start: int) -> tuple[Envelope, int]:
        """Check a version, a sender or a kind of frame that is not known to be right."""
        if not self._oldest <= (version := frame[0]) <= self._newest:
            raise FrameError("frame_hello" if version == HELLO_VERSION else "frame_version")
        identity = frame[_SUM_END:start]
        opened = self._opened.get(identity)
        if opened is None:
            opened = self._open_sender(frame, identity, start)
        code, given = _START.unpack_from(frame)
        found = opened.get(code)
        if found is None:
            raise FrameError("frame_checksum" if checksum(frame, start) != given else "frame_kind")
        return found

    def _open_sender(self, frame: bytes, identity: bytes, start: int) -> _Opened:
        """Check a sender on its first frame."""
        sender, versions = self._sender(frame, start)
        if len(self._opened) >= _MEMO_MAX:
            self._opened.clear()
        opened = self._opened[identity] = {}
        for version in range(self._oldest, self._newest + 1):
            for kind in FrameKind:
                head = bytes((version, kind))
                found = Envelope(kind, sender, start, versions), _seed(head, identity)
                opened[int.from_bytes(head, "little")] = found
        return opened

    def _sender(self, frame: bytes, start: int) -> tuple[Member, Versions]:
        _, _, _, tag, incarnation, name_size, _ = _HEAD.unpack_from(frame)
        if tag[:TAG_BYTES] != self.tag[:TAG_BYTES]:
            raise FrameError("frame_cluster")
        accepted = self._accepted
        versions = self.versions if accepted is None else accepted.get(tag[TAG_BYTES:])
        if versions is None:
            raise FrameError("frame_settings")
        if start > len(frame) or not name_size:
            raise FrameError("frame_short")
        middle = _HEAD.size + name_size
        try:
            name, address = frame[_HEAD.size : middle].decode(), frame[middle:start].decode()
        except UnicodeDecodeError as err:
            raise FrameError("frame_text") from err
        if not name.isprintable():
            raise FrameError("frame_text")
        return Member(name, incarnation, address), versions

    def decode(self, frame: bytes, envelope: Envelope) -> Message:
        """The message behind a checked envelope."""
        kind, start = envelope.kind, envelope.start
        if kind is _TOKEN_KIND:
            return self._read_token(frame, start)
        if kind is _DATA_KIND or kind is _EARLY_KIND:
            return self.data(frame, start)
        if kind is _REPORT_KIND:
            return self._read_report(frame, start)
        match kind:
            case FrameKind.JOIN:
                return read_join(frame[start:])
            case FrameKind.COMMIT:
                ring, start = self.ring(frame, start)
                return read_commit(ring, frame[start:])
            case FrameKind.MERGE:
                ring, start = self.ring(frame, start)
                return read_merge(ring, frame[start:])
            case FrameKind.WAKE:
                ring, start = self.ring(frame, start)
                if start != len(frame):
                    raise FrameError("frame_trailing")
                return Wake(ring)
            case FrameKind.PROBE | FrameKind.ALIVE:
                if start != len(frame):
                    raise FrameError("frame_trailing")
                return Probe() if kind is FrameKind.PROBE else Alive()
            case FrameKind.DIRECT:
                return Datagram(frame[start:])
            case _:
                raise AssertionError(kind)

    def ring(self, frame: bytes, start: int) -> tuple[RingId, int]:
        """The ring block at `start`, and where it ends."""
        fixed = start + _RING.size
        if fixed > len(frame):
            raise FrameError("frame_short")
        end = fixed + frame[fixed - 1]
        block = frame[start:end]
        found = self._rings.get(block)
        if found is None:
            if end > len(frame):
                raise FrameError("frame_short")
            seq, incarnation, _ = _RING.unpack_from(frame, start)
            if seq > RING_SEQ_MAX:
                raise FrameError("frame_ring")
            try:
                found = RingId(seq, frame[fixed:end].decode(), incarnation)
            except UnicodeDecodeError as err:
                raise FrameError("frame_text") from err
            if len(self._rings) >= _MEMO_MAX:
                self._rings.clear()
            self._rings[block] = found
        return found, end

    def data(self, frame: bytes, start: int = 0) -> Data:
        """A data body, as it stands behind the envelope or inside a recovered frame."""
        ring, at = self.ring(frame, start)
        try:
            seq, origin, content_code, guarantee_code, count = _DATA.unpack_from(frame, at)
            at += _DATA.size
            if not 0 < count <= ITEMS_MAX:
                raise FrameError("data_count")
            lengths = _lengths(count).unpack_from(frame, at)
        except struct_error as err:
            raise FrameError("frame_short") from err
        at += 4 * count
        if at + sum(lengths) != len(frame):
            raise FrameError("data_length")
        content = _CONTENTS.get(content_code)
        guarantee = _GUARANTEES.get(guarantee_code)
        if content is None or guarantee is None or not 0 < seq <= COUNT_MAX:
            raise FrameError("data_field")
        if content is Content.FRAGMENT:
            if count != 2 or lengths[0] != _FRAGMENT.size:
                raise FrameError("data_fragment")
            # A piece is copied when its payload is joined: until then it is a part of the frame.
            middle = at + _FRAGMENT.size
            items = [frame[at:middle], cast("bytes", memoryview(frame)[middle:])]
        else:
            items = [frame[a:b] for a, b in pairwise(accumulate(lengths, initial=at))]
            if content is Content.RECOVERED and count != 1:
                raise FrameError("data_recovered")
        body = frame[start:] if len(frame) < _SMALL else cast("bytes", memoryview(frame)[start:])
        return _new(Data, (ring, seq, origin, content, guarantee, items, body))

    def _read_report(self, frame: bytes, start: int) -> Report:
        ring, at = self.ring(frame, start)
        if at + _REPORT.size != len(frame):
            raise FrameError("report_length")
        hop, held, safe, mark, covers = _REPORT.unpack_from(frame, at)
        if not covers <= safe <= held or hop > COUNT_MAX or held > COUNT_MAX:
            raise FrameError("report_field")
        return _new(Report, (ring, hop, held, safe, mark, covers))

    def _read_token(self, frame: bytes, start: int) -> Token:
        ring, at = self.ring(frame, start)
        try:
            (
                hop, seq, aru, aru_by, sent, backlog, recovering, marks, wanted, everywhere, *pace
            ) = _TOKEN.unpack_from(frame, at)  # fmt: skip
        except struct_error as err:
            raise FrameError("frame_short") from err
        at += _TOKEN.size
        if marks > MEMBERS_MAX or wanted > WANTED_MAX or at + 8 * (marks + wanted) != len(frame):
            raise FrameError("token_length")
        if (
            everywhere > aru
            or aru > seq
            or recovering > 1
            or not marks
            or (aru_by != NOBODY and aru_by >= marks)
        ):
            raise FrameError("token_field")
        if hop > COUNT_MAX or seq > COUNT_MAX or backlog > COUNT_MAX or sent > SENT_MAX:
            raise FrameError("token_count")
        tail = _quads(marks + wanted).unpack_from(frame, at)
        return _new(
            Token,
            (
                ring, hop, seq, aru, aru_by, sent, backlog, recovering == 1,
                tail[:marks], tail[marks:], _new(Pace, pace), everywhere,
            ),
        )  # fmt: skip
