"""A large body in parts equals the same body as bytes."""

import random

import pytest

from broker.machine.digest import body_hash
from broker.machine.state import Message, rehash, rehash_wholly
from broker.waiting import page_format
from broker.waiting.bodies import GrowingBody, LargeBody, in_parts, pieces_of
from broker.waiting.page_format import pack, unpack, unpack_large
from broker.waiting.pager import summary_of

BYTES = random.Random(3).randbytes(5000)
SIZES = [[5000], [0, 1, 4999], [128] * 39 + [8], [2500, 0, 2500]]


def cut(sizes: list[int]) -> LargeBody:
    growing, at = GrowingBody(), 0
    for size in sizes[:-1]:
        growing.add(BYTES[at : at + size])
        at += size
    return growing.whole(BYTES[at:])


def message(body: bytes | LargeBody, number: int = 7) -> Message:
    row = (0, number, "x", "key", 4, 5, -1, b"\0\0", body)
    return (rehash(row), *row[1:])


@pytest.mark.parametrize("sizes", SIZES)
def test_a_body_in_parts_equals_its_bytes(sizes: list[int]) -> None:
    body = cut(sizes)
    assert body == BYTES
    assert body == in_parts((BYTES[:1], BYTES[1:]))
    assert body != BYTES[:-1]
    assert (len(body), bytes(body)) == (5000, BYTES)
    assert body_hash(body) == body.hashed_again() == body_hash(BYTES)
    assert rehash_wholly(message(body)) == rehash(message(body)) == rehash(message(BYTES))
    for size in (1000, 1300, 5000, 9000):
        assert list(pieces_of(body, size)) == list(pieces_of(BYTES, size))


def test_a_comparison_of_all_bytes_sees_a_changed_part() -> None:
    body = cut([2500, 2500])
    rotten = LargeBody((body.parts[0], bytes(2500)), 5000, body.hashed)
    assert rehash(message(rotten)) == rehash(message(body))
    assert rehash_wholly(message(rotten)) != rehash(message(body))


@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_a_page_writes_the_parts_one_after_another(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_format, "LARGE_BYTES", 4000)
    body = cut([2500, 0, 2500])
    rows = (message(b"small", 1), message(body, 2), message(b"", 3), message(cut([5000]), 4))
    packed = pack(rows)
    assert isinstance(packed, list)
    assert all(any(one is part for one in packed) for part in body.parts)  # not a copy
    data = b"".join(packed)
    found = unpack_large(data[at : at + piece] for at in range(0, len(data), piece))
    assert found == rows
    assert [type(one[-1]) for one in found] == [bytes, LargeBody, bytes, LargeBody]
    assert summary_of(found) == summary_of(rows)


def test_a_large_body_of_one_piece_is_read_in_parts_too() -> None:
    row = message(BYTES)
    data = pack((row,))
    assert isinstance(data, bytes)
    (found,) = unpack_large(data[at : at + 999] for at in range(0, len(data), 999))
    assert found == row
    assert type(found[-1]) is LargeBody


def test_small_bodies_in_parts_are_written_like_any_other() -> None:
    """A checkpoint contains such pages unchanged, and other members read them."""
    rows = (message(cut([2500, 2500]), 1), message(b"small", 2))
    plain = (message(BYTES, 1), message(b"small", 2))
    for count in (1, 2):
        packed = pack(rows[:count])
        assert packed == pack(plain[:count])
        assert isinstance(packed, bytes)
        assert unpack(packed) == plain[:count]
