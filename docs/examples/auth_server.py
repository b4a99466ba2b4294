"""An authentication and authorization server for `qpidd --auth-backends http,internal`."""

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

PASSWORDS = {"ada": "lovelace", "bob": "builder"}
TAGS = {"ada": " administrator"}


def answer(about: str, asked: dict[str, str]) -> str:
    """Allow ada everything; bob, names that begin with `bob.`, and publishing to queues by name."""
    user = asked["username"]
    if about == "user":
        good = user in PASSWORDS and asked.get("password") == PASSWORDS[user]
        return f"allow{TAGS.get(user, '')}" if good else "deny"
    own = about == "vhost" or asked["name"].startswith("bob.") or asked["name"] == "amq.default"
    return "allow" if user == "ada" or (user == "bob" and own) else "deny"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = dict(parse_qsl(form, keep_blank_values=True))
        said = answer(self.path.rpartition("/")[2], asked).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    port = parser.parse_args().port
    try:
        ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    except (OSError, OverflowError) as error:
        raise SystemExit(f"cannot listen on port {port}: {error}") from None
