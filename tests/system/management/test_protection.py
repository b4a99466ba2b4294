"""What the API refuses before it looks at the request: strangers, other sites, too much data."""

from __future__ import annotations

import socket

import pytest

from tests.system.management.http import Api

pytestmark = pytest.mark.system

KINDS = (
    "application/json",
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)


def test_without_credentials(api: Api) -> None:
    answered = Api(api.address).ask("GET", "overview", headers={"Authorization": ""})
    assert answered.status == 401
    realm = 'Basic realm="RabbitMQ Management"'  # Perl's LWP chooses the password by it
    assert answered.headers["WWW-Authenticate"] == realm


@pytest.mark.parametrize(
    "header", ["Basic !!!", "Basic Z3Vlc3Q=", "Bearer x", "Basic " + "A" * 5000]
)
def test_malformed_credentials(api: Api, header: str) -> None:
    answered = api.ask("GET", "overview", headers={"Authorization": header})
    assert answered.status == 401
    assert answered.body == {"error": "not_authorised", "reason": "Login failed"}


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
def test_a_wrong_login(api: Api, user: str, password: str) -> None:
    stranger = Api(api.address, user, password)
    assert stranger.ask("GET", "overview").status == 401
    assert stranger.ask("PUT", "queues/%2F/stolen", {}).status == 401
    assert api.ask("GET", "queues/%2F/stolen").status == 404


def test_a_page_of_another_site_changes_nothing(api: Api) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": f"http://{api.address}", "Sec-Fetch-Site": "cross-site"},
    ):
        for kind in KINDS:
            told = {**headers, "Content-Type": kind}
            assert api.ask("PUT", "queues/%2F/forged", {}, headers=told).status == 403
            assert api.ask("DELETE", "queues/%2F/forged", headers=told).status == 403
    assert api.ask("GET", "queues/%2F/forged").status == 404
    own = {"Origin": f"http://{api.address}", "Sec-Fetch-Site": "same-origin"}
    assert api.ask("PUT", "queues/%2F/forged", {}, headers=own).status == 201
    assert api.ask("DELETE", "queues/%2F/forged", headers=own).status == 204
    behind_a_proxy = {"Origin": "https://mq.example", "Sec-Fetch-Site": "same-origin"}
    assert api.ask("PUT", "queues/%2F/forged", {}, headers=behind_a_proxy).status == 201
    assert api.ask("DELETE", "queues/%2F/forged", headers=behind_a_proxy).status == 204
    assert "Access-Control-Allow-Origin" not in api.ask("GET", "overview", headers=own).headers


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_is_json_whatever_its_type(api: Api, kind: str) -> None:
    """As at RabbitMQ: `curl -d` declares a form, pyrabbit2 declares nothing."""
    told = {"Content-Type": kind}
    wanted = {"durable": False}
    assert api.ask("PUT", "queues/%2F/typed", wanted, headers=told).status == 201
    assert api.row("queues/%2F/typed")["durable"] is False
    assert api.ask("PUT", "queues/%2F/typed", headers=told, raw=b"durable=true").status == 400
    assert api.ask("DELETE", "queues/%2F/typed", headers=told).status == 204


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"x"', b"\xff\xfe", b'{"durable": 1}', b'{"arguments": "x"}', b"NaN",
     b'{"arguments": {"x": NaN}}', b'{"a":' * 50 + b"1" + b"}" * 50, b"[" * 100_000,
     b'{"arguments": {"x": 9223372036854775808}}', b'{"arguments": {"x": "\\ud800"}}',
     b'{"arguments": {"x": ' + b"9" * 5000 + b"}}"],
)  # fmt: skip
def test_refused_bodies(api: Api, body: bytes) -> None:
    answered = api.ask("PUT", "queues/%2F/never", raw=body)
    assert answered.status == 400
    assert isinstance(answered.body, dict)
    assert answered.body["error"] == "bad_request"
    assert "Traceback" not in str(answered.body)
    assert api.ask("GET", "queues/%2F/never").status == 404


def test_names_too_long_for_amqp(api: Api) -> None:
    for name in ("x" * 256, "%FF", "x" * 5000):
        assert api.ask("PUT", f"queues/%2F/{name}", {}).status == 400


def test_a_body_that_is_too_large(api: Api) -> None:
    answered = api.ask("PUT", "queues/%2F/never", headers={"Content-Length": str(1 << 40)}, raw=b"")
    assert answered.status == 413


def test_only_messages_and_definitions_may_be_large(api: Api) -> None:
    large = b'{"arguments": {"x": "' + b"a" * (300 << 10) + b'"}}'
    assert api.ask("PUT", "queues/%2F/never", raw=large).status == 413
    message = (
        b'{"routing_key": "never", "properties": {}, "payload_encoding": "string", "payload": "'
    )
    message += b"a" * (300 << 10) + b'"}'
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", raw=message).status == 200


def test_malformed_or_too_large_heads(api: Api) -> None:
    for head in (
        b"GET /api/overview HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /api/overview HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /api/overview HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"NONSENSE\r\n\r\n",
    ):
        with socket.create_connection(api.address, timeout=60) as link:
            link.sendall(head)
            assert link.recv(100).split()[1] == b"400"
    assert api.ask("GET", "overview").status == 200


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../server.py",
             "//etc/passwd", "/server.py", "/..%2fserver.py"],
)  # fmt: skip
def test_no_path_leads_out_of_the_dashboard(api: Api, path: str) -> None:
    answered = api.ask("GET", path)
    assert answered.status == 404
    assert answered.body == {"error": "Object Not Found", "reason": "Not Found"}


def test_replies_carry_the_security_headers(api: Api) -> None:
    headers = api.ask("GET", "overview").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-cache"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Server"] == "qpidd"


def test_a_method_that_a_path_does_not_support(api: Api) -> None:
    answered = api.ask("DELETE", "overview")
    assert answered.status == 405
    assert answered.headers["Allow"] == "HEAD, GET, OPTIONS"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("queues/%2F/nowhere", "HEAD, GET, PUT, DELETE, OPTIONS"),
        ("queues/%2F/nowhere/contents", "DELETE, OPTIONS"),
    ],
)
def test_options_needs_no_login(api: Api, path: str, methods: str) -> None:
    answered = Api(api.address, "nobody", "wrong").ask("OPTIONS", path)
    assert answered.status == 200
    assert answered.headers["Allow"] == methods


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "exchanges/%2F/amq.topic/publish"),
     ("POST", "definitions")],
)  # fmt: skip
def test_bodies_with_too_many_values(api: Api, method: str, path: str) -> None:
    """Parsing them would hold up the ring for seconds and take hundreds of megabytes."""
    bomb = b'{"payload": [' + b",".join([b"{}"] * 1_000_000) + b"]}"
    answered = api.ask(method, path, raw=bomb)
    assert answered.status == 400
    assert "values" in str(answered.body)


@pytest.mark.parametrize("columns", ["name" + ".a" * 4000, ",".join(f"c{n}" for n in range(200))])
def test_unknown_columns(api: Api, columns: str) -> None:
    for path in ("exchanges", "exchanges?page=1&", "overview", "exchanges/%2F/amq.topic"):
        mark = "" if path.endswith("&") else "?"
        assert api.ask("GET", f"{path}{mark}columns={columns}").status == 400
