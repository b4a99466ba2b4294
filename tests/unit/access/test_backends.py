"""Users of a file beside those of the cluster: which logins are accepted, with which tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.access import passwords
from broker.access.backends import Backends, BadUserFile, FileUser, read_users
from broker.amqp import codec
from broker.listener.client_listener import AccessFileError, users_in
from tests.support.amqp_peer import method, publish, start_ok, tune_ok
from tests.support.gateway_loop import PERMISSIONS, Loop, Peer

SHA256, SHA512 = passwords.ALGORITHMS
HASH = passwords.hashed("secret", b"salt")


def test_a_file_has_a_line_for_each_user() -> None:
    long = passwords.hashed("secret", b"salt", SHA512)
    text = f"# ours\n\nada:{HASH}:administrator, monitoring\n  bob:{long}\n"
    assert read_users(text) == {
        "ada": FileUser(HASH, SHA256, ("administrator", "monitoring")),
        "bob": FileUser(long, SHA512, ()),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada", "line 1: it is not of the form NAME:HASH:TAG,TAG"),
        (f"\n:{HASH}:", "line 2: it is not of the form"),
        ("ada:$2y$05$abc:", "line 1: the hash of 'ada' is of another kind than RabbitMQ's"),
        ("ada:plain:", "line 1: the hash of 'ada' is not base64 of a salt"),
        (f"ada:{HASH}:\nada:{HASH}:", "line 2: user 'ada' has a line already"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadUserFile, match=said):
        read_users(text)


def test_a_readable_bad_or_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users"
    with pytest.raises(AccessFileError, match=r"--auth-file .*users: No such file"):
        users_in(file)
    file.write_text(f"ada:{HASH}:")
    file.chmod(0o644)
    with pytest.raises(AccessFileError, match=f"run: chmod o= {file}"):
        users_in(file)
    file.chmod(0o600)
    assert list(users_in(file)) == ["ada"]
    file.write_text(f"ada:{HASH}:", encoding="utf-8-sig")
    assert list(users_in(file)) == ["ada"], "a byte order mark belongs to no name"
    file.write_text("ada")
    with pytest.raises(AccessFileError, match="line 1"):
        users_in(file)


def member(*order: str) -> tuple[Loop, Backends]:
    backends = Backends(order, {"ada": FileUser(HASH, SHA256, ("impersonator",))})
    return Loop({"ada": "other", "bob": "hidden"}, backends=backends), backends


def login(loop: Loop, user: str, password: str) -> Peer:
    peer = Peer(loop, is_local=False)
    opening = start_ok(user, password) + tune_ok() + method(0, "connection.open", "/")
    peer.received = peer.send(codec.PROTOCOL_HEADER, opening)
    return peer


def backend_of(loop: Loop, user: str, password: str) -> str:
    peer = login(loop, user, password)
    assert (peer.take()[-1].method == "connection.open-ok") is bool(peer.client.login.backend)
    return peer.client.login.backend


def test_a_user_removed_from_the_file_between_login_and_open_is_refused() -> None:
    loop, backends = member("file")
    peer = Peer(loop, is_local=False)
    peer.send(codec.PROTOCOL_HEADER, start_ok("ada", "secret") + tune_ok())
    backends.replace({})
    (closed,) = peer.send(method(0, "connection.open", "/"))
    assert closed.args[:2] == (530, "NOT_ALLOWED - user 'ada' is deleted")


def test_the_first_back_end_that_accepts_the_credentials_decides() -> None:
    for order in (("internal", "file"), ("file", "internal")):
        loop, _ = member(*order)
        assert backend_of(loop, "ada", "secret") == "file"
        assert backend_of(loop, "ada", "other") == "internal"
        assert backend_of(loop, "bob", "hidden") == "internal"
        assert backend_of(loop, "bob", "secret") == ""


def test_an_unknown_user_costs_as_much_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of the answer would tell strangers which users exist."""
    loop, _ = member("internal", "file")
    looked, matches = list[int](), passwords.matches

    def noted(password: str, password_hash: str | None, algorithm: str) -> bool:
        looked[-1] += 1
        return matches(password, password_hash, algorithm)

    monkeypatch.setattr(passwords, "matches", noted)
    for user in ("ada", "bob", "nobody"):
        looked.append(0)
        assert backend_of(loop, user, "wrong") == ""
    assert looked == [2, 2, 2]


def test_a_back_end_that_is_not_in_the_order_admits_nobody() -> None:
    loop, _ = member("file")
    assert backend_of(loop, "ada", "other") == ""
    assert backend_of(loop, "bob", "hidden") == ""
    loop, _ = member("internal")
    assert backend_of(loop, "ada", "secret") == ""


def test_the_tags_are_those_of_the_admitting_back_end() -> None:
    loop, _ = member("internal", "file")
    other = codec.encode_properties({"user_id": "bob"})
    for password, refused in (("secret", []), ("other", [406])):
        peer = login(loop, "ada", password).open(1)
        received = peer.send(publish(1, "", "q", b"", other))
        assert [one.args[0] for one in received] == refused


def test_a_user_removed_from_the_file_is_sent_away_and_no_other() -> None:
    loop, backends = member("internal", "file")
    of_file, of_cluster = login(loop, "ada", "secret"), login(loop, "ada", "other")
    for peer in (of_file, of_cluster):
        peer.take()
    backends.replace({})
    loop.turn()
    (closed,) = of_file.take()
    assert closed.args[:2] == (320, "CONNECTION_FORCED - user 'ada' is deleted")
    assert of_cluster.take() == []
    assert backend_of(loop, "ada", "secret") == ""


def test_the_rights_of_a_user_of_a_file_come_from_the_definitions() -> None:
    backends = Backends(("file",), {"eve": FileUser(HASH, SHA256, ("administrator",))})
    loop = Loop(backends=backends)
    assert login(loop, "eve", "secret").take()[-1].args[0] == 530
    loop.define("user", "", "eve", {**Loop.hashed(""), "password_hash": ""})
    loop.define("permission", "/", "eve", dict.fromkeys(PERMISSIONS, ".*"))
    assert login(loop, "eve", "secret").take()[-1].method == "connection.open-ok"
    assert backend_of(loop, "eve", "") == ""
