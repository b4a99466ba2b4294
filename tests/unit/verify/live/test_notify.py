"""Alerts of --follow to a command and a webhook: sent, retried, never waited for."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import pytest

from tools.verify.findings import BadInput, Finding
from tools.verify.live.notify import (
    NotDelivered,
    Receiver,
    as_document,
    receiving,
    tell,
    to_command,
    to_webhook,
)

FOUND = Finding("G14", "b", 1, 90, "another chain \u201cafter\u201d PUBLISH")
LONG_S = 60.0


class _Hook(BaseHTTPRequestHandler):
    """Answers with one status after another, then drips; keeps the requests."""

    statuses: ClassVar[list[int]] = []
    begins: ClassVar[bytes] = b"HTTP/1.1 200 OK\r\nA: "
    got: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, self.headers["Content-Type"], body))
        if not self.statuses:  # one byte at a time, without end
            with suppress(OSError):
                self.wfile.write(self.begins)
                while True:
                    self.wfile.write(b"H")
                    time.sleep(0.01)
            return
        self.send_response(self.statuses.pop(0))
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def webhook(*statuses: int) -> Iterator[str]:
    _Hook.statuses[:] = statuses
    _Hook.got.clear()
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret/path"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LONG_S)


def test_a_command_gets_the_finding_as_json(tmp_path: Path) -> None:
    file = tmp_path / "told here"
    with receiving(f"tee -a '{file}'", None) as receivers:
        tell(receivers, FOUND)
    document = json.loads(file.read_bytes())
    assert document == {**as_document(FOUND), "around": []}
    assert (document["property"], document["text"]) == ("G14", str(FOUND))
    assert [(one.told, one.lost) for one in receivers] == [(1, 0)]


def test_user_names_cannot_forge_lines_or_reach_the_terminal() -> None:
    named = FOUND._replace(what="did not enter a\nALERT G1\x1b[2J\u202e")
    assert str(named).endswith("did not enter a\\nALERT G1\\x1b[2J\\u202e")
    assert as_document(named)["text"] == str(named)
    assert "\u201cafter\u201d" in str(FOUND)


def test_a_webhook_gets_the_alert_when_it_answers_again() -> None:
    with webhook(503, 500, 200) as url:
        one = Receiver("--alert-url", to_webhook(url), waits=(0.0, 0.0, 0.0))
        tell([one], FOUND)
        until(one)
    assert (one.told, one.lost) == (1, 0)
    assert len(_Hook.got) == 3
    path, kind, body = _Hook.got[-1]
    assert (path, kind) == ("/secret/path", "application/json")
    assert json.loads(body)["position"] == 90


def test_a_redirect_is_an_error_that_keeps_the_path_secret() -> None:
    with webhook(302) as url, pytest.raises(NotDelivered, match="answered 302") as failure:
        to_webhook(url)(b"{}")
    assert "secret" not in str(failure.value)
    assert len(_Hook.got) == 1


def test_a_dripping_answer_is_cut_off() -> None:
    """No single byte was late, so one alert held up all later ones."""
    with webhook() as url, pytest.raises(NotDelivered, match=r"no whole answer in 0\.1 s"):
        to_webhook(url, 0.1)(b"{}")


def test_an_invalid_answer_is_an_error_that_keeps_the_path_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Hook, "begins", b"no http")
    with webhook() as url, pytest.raises(NotDelivered, match="Bad status line") as failure:
        to_webhook(url)(b"{}")
    assert "secret" not in str(failure.value)


def test_retries_are_bounded_and_lost_alerts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    tries: list[bytes] = []

    def refuse(document: bytes) -> None:
        tries.append(document)
        raise NotDelivered("it says no")

    one = Receiver("--alert-url", refuse, waits=(0.0, 0.0))
    one.tell(b"x")
    until(one)
    assert (len(tries), one.told, one.lost) == (3, 0, 1)
    assert "alert not told to --alert-url: it says no" in capsys.readouterr().err


def test_a_receiver_that_hangs_delays_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    began, let_go = Event(), Event()

    def hang(_: bytes) -> None:
        began.set()
        assert let_go.wait(LONG_S)

    one = Receiver("--alert-command", hang, most=2)
    one.tell(b"first")
    assert began.wait(LONG_S)
    for _ in range(5):
        one.tell(b"more")
    assert one.lost == 3
    one.close(0.0)
    assert one.lost == 6  # the receiver that hangs, too
    assert "3 alerts were not told before the end" in capsys.readouterr().err
    let_go.set()


def test_a_failing_command_is_reported_with_its_reason() -> None:
    with pytest.raises(NotDelivered, match="sh ended with 3 no such pager"):
        to_command("sh -c 'echo no such pager >&2; exit 3'")(b"{}")
    with pytest.raises(NotDelivered, match="No such file"):
        to_command("/none/such")(b"{}")


def test_a_command_has_ended_even_if_it_leaves_a_background_process(tmp_path: Path) -> None:
    """It was called again and again, as if it had not ended: a page each time."""
    done = tmp_path / "done"
    rest = f"while [ ! -e '{done}' ]; do sleep 0.05; done"
    try:
        to_command(shlex.join(["sh", "-c", f"cat > /dev/null; ({rest}) & exit 0"]))(b"{}")
    finally:
        done.touch()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "example.com/hook", "http://", "http://u:p@x/", "http://[x/",
        "http://x:port/", "http://x:70000/", "http://x/a b", "http://x/\u00e4",
    ],
)  # fmt: skip
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="--alert-url"):
        to_webhook(url)


@pytest.mark.parametrize("command", ["", "'unclosed"])
def test_an_invalid_command_is_refused(command: str) -> None:
    with pytest.raises(BadInput, match="--alert-command"):
        to_command(command)


def until(one: Receiver) -> None:
    """Wait until all alerts are sent or lost."""
    one.close(LONG_S)
