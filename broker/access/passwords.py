"""Salted password hashes in RabbitMQ's format, so that its users can be imported.

base64(salt of 4 bytes + hash(salt + password)); an empty hash lets nobody in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

SALT_BYTES = 4
DEFAULT_ALGORITHM = "rabbit_password_hashing_sha256"
ALGORITHMS = {
    DEFAULT_ALGORITHM: hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
}
_NOBODY = base64.b64encode(bytes(SALT_BYTES + 32)).decode()


def hashed(password: str, salt: bytes, algorithm: str = DEFAULT_ALGORITHM) -> str:
    """Return the hash to store; the caller draws the salt."""
    assert len(salt) == SALT_BYTES
    return base64.b64encode(
        salt + ALGORITHMS[algorithm](salt + password.encode()).digest()
    ).decode()


def fault_of(password_hash: str, algorithm: str) -> str:
    """Return what is wrong with a hash given by an operator; empty: nothing."""
    if algorithm not in ALGORITHMS:
        return f"hashing_algorithm '{algorithm}' is none of {', '.join(ALGORITHMS)}"
    if password_hash and len(_unpacked(password_hash)) != SALT_BYTES + _size(algorithm):
        return "password_hash is not base64 of a salt of 4 bytes and a hash of that algorithm"
    return ""


def matches(password: str, password_hash: str | None, algorithm: str) -> bool:
    """Whether this is the password; None, for an unknown user, takes as long."""
    kept = _unpacked(password_hash or _NOBODY)
    digest = ALGORITHMS.get(algorithm, hashlib.sha256)
    salt, expected = kept[:SALT_BYTES], kept[SALT_BYTES:]
    same = hmac.compare_digest(
        digest(salt + password.encode("utf-8", "replace")).digest(), expected
    )
    return same and bool(password_hash) and bool(password)


def _size(algorithm: str) -> int:
    return ALGORITHMS[algorithm]().digest_size


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
