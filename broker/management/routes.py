"""The table of paths: which handler answers which path and method, and who may ask.

A path is split before its names are decoded, so `%2F` is part of a name, and no character of a name
counts as part of the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from broker.management.access import Identity
from broker.management.call import Route, bad_request
from broker.management.resources import (
    bindings,
    connections,
    definitions,
    exchanges,
    federation,
    health,
    messages,
    overview,
    queues,
    shovels,
    transfer,
)

NAME_BYTES_MAX = 4096


ROUTES: tuple[Route, ...] = (
    *overview.ROUTES, *queues.ROUTES, *exchanges.ROUTES, *bindings.ROUTES, *messages.ROUTES,
    *connections.ROUTES, *health.ROUTES, *definitions.ROUTES, *transfer.ROUTES,
    *shovels.ROUTES, *federation.ROUTES,
)  # fmt: skip


class _Node:
    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.name: tuple[str, _Node] | None = None
        self.routes: dict[str, Route] = {}  # by method


class Router:
    """Finds the route of a path; a fixed word takes precedence over a name."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.split("/"):
                if part.startswith("{"):
                    node.name = node.name or (part[1:-1], _Node())
                    assert node.name[0] == part[1:-1], route.path
                    node = node.name[1]
                else:
                    node = node.words.setdefault(part, _Node())
            for method in route.handlers:
                assert method not in node.routes, route.path
                node.routes[method] = route

    def find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]] | None:
        """Return the routes for the path after `/api/`, by method, and the names in it."""
        parts = path.split("/")
        if parts[-1] == "" and len(parts) > 1:
            parts.pop()
        found = next(_walk(self._root, parts, 0, ()), None)
        if found is None:
            return None
        routes, names = found
        return routes, {name: decode(text) for name, text in names}


def _walk(
    node: _Node, parts: Sequence[str], at: int, names: tuple[tuple[str, str], ...]
) -> Iterator[tuple[Mapping[str, Route], tuple[tuple[str, str], ...]]]:
    if at == len(parts):
        if node.routes:
            yield node.routes, names
        return
    below = node.words.get(parts[at])
    if below is not None:
        yield from _walk(below, parts, at + 1, names)
    if node.name is not None:
        name, below = node.name
        yield from _walk(below, parts, at + 1, (*names, (name, parts[at])))


def decode(text: str) -> str:
    """Return a name in the path, decoded."""
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise bad_request("a name in the path is no UTF-8") from None
    if len(name.encode()) > NAME_BYTES_MAX:
        raise bad_request(f"a name in the path is longer than {NAME_BYTES_MAX} bytes")
    return name


def permits(route: Route, user: Identity) -> bool:
    """Whether this user may request it."""
    match route.tag:
        case "administrator":
            return user.administers
        case "monitoring":
            return user.monitors
        case "policymaker":
            return user.makes_policies
        case "":
            return True
        case _:
            return user.manages
