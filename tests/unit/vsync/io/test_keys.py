"""Keys, allow lists and the options for them: what is read, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.options.broker import broker_options
from broker.options.security import is_loopback
from broker.options.values import OptionError
from broker.process.ring_setup import ring_security
from vsync.io.keys import (
    REREAD_S,
    Allowed,
    KeyFileError,
    KeyPair,
    make_pair,
    public_text,
    read_secret,
    secret_text,
)
from vsync.io.security import Curve, Plain
from vsync.types import Member
from vsync.wire.codec import Codec, claimed_name
from vsync.wire.messages import Datagram

ROOT = Path(__file__).resolve().parents[4]
CLUSTER = {"cluster-name": "shop", "no-data-dir": "yes"}


def make_public(folder: Path, pair: KeyPair, file: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{file or pair.name}.key"
    path.write_text(public_text(pair))
    return path


def make_secret(folder: Path, pair: KeyPair, mode: int = 0o600) -> Path:
    path = folder / f"{pair.name}.key_secret"
    path.write_text(secret_text(pair))
    path.chmod(mode)
    return path


# -- files ---------------------------------------------------------------------------------------


def test_a_key_pair_is_read_back_and_never_printed(tmp_path: Path) -> None:
    pair = make_pair("a:1")
    assert read_secret(make_secret(tmp_path, pair)) == pair
    assert pair.secret not in repr(pair)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = make_secret(tmp_path, make_pair("a:1"), mode)
    with pytest.raises(KeyFileError, match=r"run: chmod 600 .*a:1\.key_secret"):
        read_secret(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line 'secret-key"),
        ('secret-key = "short"', "not a CURVE key of 40"),
        ('secret-key = "' + "'" * 40 + '"', "not a CURVE key of 40"),
        ("x" * 5_000, "more than 4096 bytes"),
    ],
)
def test_a_file_that_is_not_a_key_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=says):
        read_secret(path)


def test_other_errors_of_secret_files(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_secret(tmp_path / "none")
    noise = tmp_path / "noise"
    noise.write_bytes(b"\xff\xfe" * 20)
    noise.chmod(0o600)
    with pytest.raises(KeyFileError, match="not text"):
        read_secret(noise)
    a, b = make_pair("a:1"), make_pair("a:1")
    with pytest.raises(KeyFileError, match="does not belong to its secret-key"):
        read_secret(make_secret(tmp_path, KeyPair("a:1", b.public, a.secret)))
    with pytest.raises(KeyFileError, match="does not say whose key"):
        read_secret(make_secret(tmp_path, KeyPair("", a.public, a.secret)))


# -- the allow list ------------------------------------------------------------------------------


def test_the_allow_list_is_reread_when_it_changes(tmp_path: Path) -> None:
    told: list[str] = []
    a, b, again = make_pair("a:1"), make_pair("b:1"), make_pair("a:1")
    make_public(tmp_path, a)
    allowed = Allowed(tmp_path, pytest.fail, told.append)
    assert allowed.names == {a.public: "a:1"}
    assert not allowed.refresh(0.0)

    make_public(tmp_path, b)
    make_public(tmp_path, again, "a:1.2")
    assert not allowed.refresh(REREAD_S / 2), "read too often"
    assert allowed.refresh(REREAD_S)
    assert set(allowed.keys_of("a:1")) == {a.public, again.public}

    (tmp_path / "a:1.key").unlink()
    assert allowed.refresh(2 * REREAD_S)
    assert a.public not in allowed.names
    (tmp_path / "b:1.key").unlink()
    make_public(tmp_path, a, "a:1.2")
    assert allowed.refresh(3 * REREAD_S)
    assert told == [
        f"the allow list {tmp_path} changed: {what}"
        for what in (
            "a:1 has 2 keys, 1 before; b:1 is let in", "a:1 has 1 key, 2 before",
            "a:1 has another key; b:1 is not let in any more",
        )
    ]  # fmt: skip


def test_a_bad_list_keeps_the_old_one_and_is_logged_once(tmp_path: Path) -> None:
    told: list[str] = []
    a = make_pair("a:1")
    path = make_public(tmp_path, a)
    allowed = Allowed(tmp_path, told.append, pytest.fail)
    path.write_text("oops")
    for round_ in range(1, 5):
        assert not allowed.refresh(round_ * REREAD_S)
    assert allowed.names == {a.public: "a:1"}
    assert len(told) == 1
    assert "stays as it was" in told[0]
    path.unlink()
    assert not allowed.refresh(9 * REREAD_S)
    assert "0 files" in told[1]
    path.write_text(public_text(a))
    assert not allowed.refresh(10 * REREAD_S), "the same keys are not a change"


def test_invalid_allow_lists_are_refused(tmp_path: Path) -> None:
    def refused(says: str) -> None:
        with pytest.raises(KeyFileError, match=says):
            Allowed(tmp_path, pytest.fail, pytest.fail)

    refused("holds 0 files")
    pair = make_pair("a:1")
    path = make_public(tmp_path, pair)
    path.write_text(secret_text(pair))
    refused("holds a secret key")
    make_public(tmp_path, pair)
    make_public(tmp_path, pair._replace(name="b:1"))
    refused("the same key is allowed for")
    (tmp_path / "b:1.key").unlink()
    tmp_path.chmod(0o777)
    refused("chmod o-w")
    tmp_path.chmod(0o700)
    path.chmod(0o646)
    refused(r"run: chmod o-w .*a:1\.key")
    with pytest.raises(KeyFileError, match="cannot be read: No such"):
        Allowed(tmp_path / "none", pytest.fail, pytest.fail)


# -- names on a connection -----------------------------------------------------------------------


def frame(name: str) -> bytes:
    return Codec(Member(name, 1, "h:1"), "test", 32_768, b"sets").encode(Datagram(b"x"))


def test_a_frame_counts_only_under_the_name_of_its_key(tmp_path: Path) -> None:
    a, b = make_pair("a:1"), make_pair("b:1")
    for pair in (a, b):
        make_public(tmp_path, pair)
    told: list[str] = []
    curve = Curve(a, Allowed(tmp_path, pytest.fail, told.append))
    for _ in range(2):  # the second time from the cache
        assert curve.check(b.public, frame("b:1")) == ""
        assert curve.check(b.public, frame("a:1")) == "frames_under_false_names"
        assert curve.check(b.public, b"") == "frames_under_false_names"
        assert curve.check("nobody", frame("b:1")) == "frames_of_removed_keys"
    (tmp_path / "b:1.key").unlink()
    assert curve.refresh(REREAD_S)
    assert curve.check(b.public, frame("b:1")) == "frames_of_removed_keys"
    assert not curve.expects(b.public)
    assert curve.expects(a.public)


def test_which_keys_are_admitted(tmp_path: Path) -> None:
    a = make_pair("a:1")
    make_public(tmp_path, a)
    curve = Curve(a, Allowed(tmp_path, pytest.fail, pytest.fail))
    assert curve.admit(b"CURVE", [bytes(32)]) == ""
    assert curve.admit(b"CURVE", [b"short"]) == ""
    assert curve.admit(b"CURVE", []) == ""
    assert curve.admit(b"NULL", []) == ""
    plain = Plain("u", "p")
    assert plain.admit(b"PLAIN", [b"u", b"p"]) == "member"
    for wrong in ([b"u", b"q"], [b"v", b"p"], [b"u"], []):
        assert plain.admit(b"PLAIN", wrong) == ""
    assert plain.admit(b"CURVE", [b"u", b"p"]) == ""


def test_the_claimed_name_is_read_from_any_bytes() -> None:
    assert claimed_name(frame("a:1")) == b"a:1"
    for size in range(30):
        claimed_name(frame("a:1")[:size])
    assert claimed_name(b"") == b""


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "mechanism"),
    [
        ({}, "ANONYMOUS"),
        ({"cluster-bind": "[::1]:7000"}, "ANONYMOUS"),
        ({"cluster-bind": "10.0.0.1:7000", "cluster-mechanism": "anonymous"}, "ANONYMOUS"),
        ({"cluster-username": "u", "cluster-password": "p"}, "PLAIN"),
        ({"cluster-key": "k", "cluster-allow": "d", "cluster-bind": "10.0.0.1:7000"}, "CURVE"),
    ],
)
def test_the_mechanism_follows_from_the_options(given: dict[str, str], mechanism: str) -> None:
    assert broker_options(CLUSTER | given).security.mechanism == mechanism


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"cluster-bind": "10.0.0.1:7000"}, "cluster-bind", "--cluster-mechanism ANONYMOUS"),
        ({"cluster-bind": "somewhere:7000"}, "cluster-bind", "whoever reaches the ring"),
        ({"cluster-mechanism": "DIGEST-MD5"}, "cluster-mechanism", "ANONYMOUS, PLAIN, CURVE"),
        ({"cluster-mechanism": "curve"}, "cluster-key", "needs it"),
        ({"cluster-key": "k"}, "cluster-allow", "needs it"),
        ({"cluster-username": "u"}, "cluster-password", "needs it"),
        (
            {"cluster-mechanism": "ANONYMOUS", "cluster-username": "u"},
            "cluster-username",
            "means nothing to mechanism ANONYMOUS",
        ),
        (
            {"cluster-key": "k", "cluster-allow": "d", "port": "0"},
            "cluster-bind",
            "port must be fixed",
        ),
        ({"cluster-username": "u" * 300, "cluster-password": "p"}, "cluster-username", "255"),
    ],
)
def test_impossible_options_are_refused(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        broker_options(CLUSTER | given)
    assert caught.value.option == option


def test_a_password_is_not_printed_with_the_options() -> None:
    options = broker_options(CLUSTER | {"cluster-username": "u", "cluster-password": "geheim"})
    assert "geheim" not in repr(options)


def test_addresses_reachable_only_from_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.org", "")))


def test_keys_of_another_member_are_refused(tmp_path: Path) -> None:
    pair = make_pair("127.0.0.1:25673")
    make_public(tmp_path / "public", pair)
    secret = make_secret(tmp_path, pair)
    given = CLUSTER | {"cluster-key": str(secret), "cluster-allow": str(tmp_path / "public")}
    with pytest.raises(
        KeyFileError, match=r"member 127\.0\.0\.1:25673, and this is member 127.*672"
    ):
        ring_security(broker_options(given), pytest.fail)
    given["cluster-bind"] = pair.name
    assert ring_security(broker_options(given), pytest.fail).mechanism == "CURVE"
    told: list[str] = []
    make_public(tmp_path / "public", make_pair("127.0.0.1:1"))
    (tmp_path / "public" / f"{pair.name}.key").unlink()
    ring_security(broker_options(given), told.append)
    assert pair.public in told[0]


# -- the command ---------------------------------------------------------------------------------


def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.commands.qpid_cluster_keys", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_the_command_makes_readable_keys_and_never_overwrites_one(tmp_path: Path) -> None:
    made = keys(str(tmp_path), "127.0.0.1:7001", "[::1]:7002")
    assert made.returncode == 0, made.stderr
    secret = tmp_path / "127.0.0.1_7001.key_secret"
    pair = read_secret(secret)
    assert pair.name == "127.0.0.1:7001"
    assert os.stat(secret).st_mode & 0o777 == 0o600
    told: list[str] = []
    allowed = Allowed(tmp_path / "public", pytest.fail, told.append)
    assert sorted(allowed.names.values()) == ["127.0.0.1:7001", "[::1]:7002"]

    again = keys(str(tmp_path), "127.0.0.1:7001")
    assert again.returncode == 1
    assert "--renew" in again.stderr
    assert read_secret(secret) == pair
    assert keys("--renew", str(tmp_path), "127.0.0.1:7001").returncode == 0
    assert allowed.refresh(REREAD_S)
    assert len(allowed.keys_of("127.0.0.1:7001")) == 2


def test_the_command_refuses_an_invalid_name(tmp_path: Path) -> None:
    for name in ("host", "host:0", "a:1 "):
        refused = keys(str(tmp_path), name)
        assert refused.returncode == 64
        assert refused.stderr.count("\n") == 1
