"""A small client of the API for tests; it returns whole replies."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from broker.options.addresses import Address


class Answered(NamedTuple):
    """One reply."""

    status: int
    body: object
    headers: Mapping[str, str]


class Api:
    """One member's API, as one user."""

    def __init__(self, address: Address, user: str = "guest", password: str = "guest") -> None:
        self.address = address
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {token}"}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answered:
        """Send one request; `path` follows `/api/`; a leading `/` replaces that."""
        connection = http.client.HTTPConnection(*self.address, timeout=100)
        try:
            content = raw if raw is not None else None if body is None else json.dumps(body)
            sent = {"Content-Type": "application/json", **self.headers, **(headers or {})}
            connection.request(
                method, path if path.startswith("/") else f"/api/{path}", content, sent
            )
            response = connection.getresponse()
            text = response.read()
            found: object = text
            if response.headers.get_content_type() == "application/json" and text:
                found = json.loads(text)
            return Answered(response.status, found, dict(response.headers.items()))
        finally:
            connection.close()

    def get(self, path: str) -> object:
        """Return the body; any status but 200 is an error."""
        answered = self.ask("GET", path)
        assert answered.status == 200, (path, answered)
        return answered.body

    def rows(self, path: str) -> dict[str, dict[str, object]]:
        """Return a list's rows by their names."""
        found = self.get(path)
        assert isinstance(found, list)
        return {row["name"]: row for row in found}

    def row(self, path: str) -> dict[str, object]:
        """Return a single object."""
        found = self.get(path)
        assert isinstance(found, dict)
        return found


def seg(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")
