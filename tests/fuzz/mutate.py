"""Makes bad bytes from valid ones: blindly, or aimed at lengths, counts and shapes."""

from __future__ import annotations

import random

import msgpack

from tests.fuzz.victims import Corpus, Victim
from vsync.totem.node import Node
from vsync.types import Guarantee, RingId
from vsync.wire.codec import data_body, fragment_head, report_body, ring_block, token_body
from vsync.wire.membership_codec import commit_body
from vsync.wire.messages import NOBODY, CommitEntry, CommitToken, Content, FrameKind, Report, Token

U64 = (1 << 64) - 1
NUMBERS = (0, 1, 2, 3, 7, 63, 64, 127, 128, 255, 256, 1023, 1024, 4096, 0x7FFF, 0xFFFF, 0x10000)
WIDE = (0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, U64)
STRANGE: tuple[object, ...] = (
    None, True, False, -1, 1.5, "", "x" * 256, "\0", b"", b"x" * 70_000, [], {}, {"a": 1}, [[[[]]]],
)  # fmt: skip
BODY_BYTES_MAX = 70_000


def _pool(rng: random.Random) -> list[int]:
    """Numbers where mistakes are likely: around the powers of two, most of them small."""
    bases = [rng.choice(NUMBERS if rng.random() < 0.6 else WIDE) for _ in range(4_096)]
    return [min(max(0, base + rng.randrange(-2, 3)), U64) for base in bases]


_POOL = _pool(random.Random(0))


def number(rng: random.Random) -> int:
    """A number that an implementation may get wrong."""
    return _POOL[int(rng.random() * len(_POOL))]


def numbers(rng: random.Random, count: int) -> tuple[int, ...]:
    """Many such numbers."""
    start = int(rng.random() * (len(_POOL) - count))
    return tuple(_POOL[start : start + count])


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A damaged `data`, perhaps with pieces of `other` in it."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        size = len(out)
        at = rng.randrange(size) if size else 0
        match rng.randrange(9):
            case 0 if size:
                out[at] ^= 1 << rng.randrange(8)
            case 1 if size:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:  # a count, a length or a number of any width, at any place
                width = rng.choice((1, 2, 4, 8))
                value = number(rng) & ((1 << 8 * width) - 1)
                out[at : at + width] = value.to_bytes(width, "little")
            case 3:
                del out[at:]
            case 4:
                del out[at : at + rng.choice((1, 2, 4, 8, 64))]
            case 5:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
            case 6:
                out[at:at] = out[at : at + rng.randrange(1, 200)]
            case 7:
                out[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                out += rng.randbytes(rng.choice((1, 8, 300)))
    return bytes(out[:BODY_BYTES_MAX])


def mutate_packed(rng: random.Random, packed: bytes) -> bytes:
    """The same tree of msgpack with one leaf or branch changed; noise if it is no tree."""
    try:
        tree = msgpack.unpackb(packed)
    except (ValueError, TypeError, msgpack.UnpackException):
        return mutate(rng, packed, packed)
    nodes: list[list[object]] = []
    _branches(tree, nodes)
    if not nodes:
        return mutate(rng, packed, packed)
    branch = rng.choice(nodes)
    at = rng.randrange(len(branch)) if branch else 0
    match rng.randrange(6):
        case 0 if branch:
            branch[at] = number(rng) & ((1 << 64) - 1)
        case 1 if branch:
            branch[at] = rng.choice(STRANGE)
        case 2 if branch:
            branch[at] = rng.choice(nodes)[:]
        case 3 if branch:
            del branch[at]
        case 4:
            branch *= rng.choice((2, 3, 50))
        case _:
            branch.reverse()
    try:
        return bytes(msgpack.packb(tree))[:BODY_BYTES_MAX]
    except (ValueError, RecursionError):  # a branch that holds itself
        return mutate(rng, packed, packed)


def _branches(tree: object, found: list[list[object]]) -> None:
    if isinstance(tree, list) and len(found) < 200:
        found.append(tree)
        for item in tree:
            _branches(item, found)


def mutate_token(rng: random.Random, token: Token) -> Token:
    """A token that can be encoded, with wrong fields."""
    fields = token._asdict()
    for _ in range(rng.choice((1, 1, 2, 4))):
        match rng.randrange(11):
            case 0:
                fields["hop"] = rng.choice((token.hop, token.hop + 1, number(rng)))
            case 1:
                fields["seq"] = rng.choice((token.seq + rng.randrange(-3, 100), number(rng)))
            case 2:
                fields["aru"] = rng.choice((token.aru + rng.randrange(-3, 100), number(rng)))
            case 3:
                fields["aru_by"] = rng.choice((0, 1, 2, NOBODY, number(rng)))
            case 4:
                fields["sent"] = number(rng)
            case 5:
                fields["backlog"] = number(rng)
            case 6:
                fields["recovering"] = not token.recovering
            case 7:
                fields["marks"] = numbers(rng, rng.randrange(5))
            case 8:
                fields["everywhere"] = rng.choice((token.seq, token.aru, number(rng)))
            case 9:
                fields["wanted"] = numbers(rng, rng.choice((1, 5, 64, 1024)))
            case _:  # everything, again
                fields["wanted"] = tuple(range(1, rng.choice((2, 30, 1025))))
    limits = {"seq": 64, "hop": 64, "aru": 64, "aru_by": 16, "sent": 32, "backlog": 64}
    limits["everywhere"] = 64
    for name, bits in limits.items():
        fields[name] = max(0, fields[name]) & ((1 << bits) - 1)
    return Token(**fields)


class Forger:
    """Writes frames with a good envelope and a bad body, for one victim."""

    def __init__(self, victim: Victim, corpus: Corpus) -> None:
        self._codecs, self._corpus = victim.codecs, corpus

    def frame(self, rng: random.Random, node: Node) -> bytes:
        """One more frame; half of them are aimed at what `node` waits for now."""
        codec = rng.choice(self._codecs)
        if rng.random() < 0.5:
            kind, body = aimed(rng, node)
            if body and rng.random() < 0.3:
                # The ring block stays, or nothing behind it would ever be looked at.
                start = min(len(body), 17 + body[16])
                body = body[:start] + mutate(rng, body[start:], body)
            return codec.frame(kind, body)
        kind, body, message = rng.choice(self._corpus)
        choice = rng.random()
        if isinstance(message, Token) and choice < 0.5:
            return codec.encode(mutate_token(rng, message))
        if kind in (FrameKind.JOIN, FrameKind.COMMIT) and choice < 0.6:
            start = 17 + body[16] if kind is FrameKind.COMMIT else 0
            body = body[:start] + mutate_packed(rng, body[start:])
        elif choice < 0.97:
            body = mutate(rng, body, rng.choice(self._corpus)[1])
        if rng.random() < 0.02:
            kind = rng.choice(list(FrameKind))
        return codec.frame(kind, body)


def aimed(rng: random.Random, node: Node) -> tuple[FrameKind, bytes]:
    """A token, data or commit token of the very ring that the node is in."""
    membership = node.membership
    recovery, forming = membership.recovery, membership.commit
    ring = recovery.ring if recovery is not None else membership.current
    if ring is None or rng.random() < 0.05:
        return FrameKind.WAKE, ring_block(RingId(number(rng), "c", number(rng) % 9))
    if forming is not None and rng.random() < 0.3:
        entry = CommitEntry(ring.id, number(rng), number(rng), number(rng), number(rng), ())
        low, middle, high = sorted((number(rng), number(rng), number(rng)))
        entry = entry._replace(safe=low, aru=middle, high=high)
        hop = rng.choice((forming.expect, number(rng) & 0xFFFF))
        entries = tuple(rng.choice((None, entry)) for _ in forming.members)
        commit = CommitToken(forming.ring, forming.members, hop, entries)
        return FrameKind.COMMIT, ring_block(forming.ring) + bytes(commit_body(commit))
    high = ring.window.high
    if rng.random() < 0.5:
        token = Token(
            ring.id, ring.hop + 1, high, rng.randrange(high + 1), NOBODY, 0, 0, False,
            (0,) * len(ring.members), tuple(range(1, rng.choice((1, 1, 3, 300)))),
        )  # fmt: skip
        if rng.random() < 0.8:
            token = mutate_token(rng, token)
        return FrameKind.TOKEN, token_body(token)
    if rng.random() < 0.2:
        low, middle, top = sorted(rng.randrange(high + 9) for _ in range(3))
        hop = ring.hop + rng.randrange(-1, len(ring.members) + 1)
        report = Report(ring.id, max(0, hop), top, middle, number(rng), low)
        return FrameKind.REPORT, report_body(report)
    content = rng.choice(list(Content))
    items: tuple[bytes, ...] = tuple(rng.randbytes(rng.randrange(40)) for _ in range(3))
    if content is Content.FRAGMENT:
        items = (fragment_head(*((number(rng) & 0xFFFF_FFFF) for _ in range(3))), b"piece")
    elif content is Content.RECOVERED:
        old = recovery.exchange.old if recovery is not None else None
        block = ring_block(old.id if old is not None else ring.id)
        seq = number(rng) & 0xFFFF
        wrapped = data_body(block, seq, 0, Content.PAYLOADS, Guarantee.SAFE, items)
        items = (wrapped,)
    seq = rng.choice((high + 1, high + 2, rng.randrange(1, high + 70), number(rng) + 1))
    origin = rng.choice((0, 1, 2, number(rng) & 0xFFFF))
    guarantee = rng.choice(list(Guarantee))
    body = data_body(ring_block(ring.id), seq & ((1 << 64) - 1), origin, content, guarantee, items)
    return rng.choice((FrameKind.DATA, FrameKind.EARLY)), body
