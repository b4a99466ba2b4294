"""Password hashes in RabbitMQ's format."""

from __future__ import annotations

import pytest

from broker.access import passwords

RABBITMQ_EXAMPLE = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
"""Of "test12", from the documentation of RabbitMQ."""


def test_a_hash_of_rabbitmq_is_understood() -> None:
    assert passwords.fault_of(RABBITMQ_EXAMPLE, passwords.DEFAULT_ALGORITHM) == ""
    assert passwords.matches("test12", RABBITMQ_EXAMPLE, passwords.DEFAULT_ALGORITHM)
    assert not passwords.matches("test13", RABBITMQ_EXAMPLE, passwords.DEFAULT_ALGORITHM)


@pytest.mark.parametrize("algorithm", passwords.ALGORITHMS)
def test_a_hash_matches_its_password_and_no_other(algorithm: str) -> None:
    kept = passwords.hashed("päss", b"salt", algorithm)
    assert passwords.fault_of(kept, algorithm) == ""
    assert passwords.matches("päss", kept, algorithm)
    for other in ("", "pass", "päss ", "\ud800"):
        assert not passwords.matches(other, kept, algorithm)


def test_nobody_logs_in_without_a_password() -> None:
    empty = passwords.hashed("", b"salt")
    for password_hash in ("", None, empty, "no base64", "AAAA"):
        for password in ("", "x"):
            assert not passwords.matches(password, password_hash, passwords.DEFAULT_ALGORITHM)


@pytest.mark.parametrize(
    ("password_hash", "algorithm"),
    [
        ("", "md5"),
        ("x", passwords.DEFAULT_ALGORITHM),
        ("AAAA", passwords.DEFAULT_ALGORITHM),
        (passwords.hashed("x", b"salt"), "rabbit_password_hashing_sha512"),
    ],
)
def test_an_invalid_hash_is_refused(password_hash: str, algorithm: str) -> None:
    assert passwords.fault_of(password_hash, algorithm)
