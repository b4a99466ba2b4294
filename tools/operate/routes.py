"""Routes and links in the terms of Qpid's `qpid-route`, made of upstreams, policies and shovels.

    link      an upstream, or the broker that a route below names
    dynamic   the exchange's policy names a set of upstreams, of which the link is one
    route     a shovel from an exchange to the same one, by one key
    queue     a shovel from a queue to an exchange

All have names that begin with `qpid-route`; other definitions are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import click

from tools.cli.answers import Json, Object, objects
from tools.client.broker_url import AMQP, BrokerUrl, parse_url
from tools.client.http_api import Api, ApiError
from vsync.types import record

PREFIX = "qpid-route "
NAME_BYTES_MAX = 248
"""Length of a parameter's name, without its component."""
UPSTREAM, UPSTREAM_SET, SHOVEL = "federation-upstream", "federation-upstream-set", "shovel"
STATES = {"running": "Operational", "starting": "Connecting"}
WAITING, UNUSED = "Waiting", "Unused"
DYNAMIC = "<dynamic>"
SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
"""Characters with a meaning in a pattern; a backslash may precede others, too."""


@record
class Peer:
    """The broker at the other end of a link."""

    url: BrokerUrl
    uri: str
    """The URI by which the cluster reaches it."""

    @property
    def says_how(self) -> bool:
        """Whether it gives a login, or other settings for a link, and not only an address."""
        return bool(self.url.user) or "?" in self.uri

    @property
    def name(self) -> str:
        """The name for people, and in names of definitions."""
        return peer_name(self.url)


def peer_name(url: BrokerUrl) -> str:
    """Host and port, and the virtual host if it is not one of the usual ones."""
    return str(url.address) + (f"/{url.vhost}" if url.vhost not in (None, "", "/") else "")


def peer_of(text: str, *, tls: bool, mechanism: str) -> Peer:
    """Parse a peer in Qpid's form, or as a URI. Raises UsageError."""
    plain = not any(text.startswith(scheme) for scheme in AMQP)
    try:
        url = parse_url(("amqp:ssl:" if tls and plain else "") + text.partition("?")[0], AMQP)
    except ValueError as problem:
        raise click.UsageError(f"the broker at the other end: {problem}") from None
    login = ""
    if url.user:
        login = quote(url.user, safe="")
        if url.password is not None:
            login += ":" + quote(url.password, safe="")
        login += "@"
    vhost = f"/{quote(url.vhost, safe='')}" if url.vhost else ""
    _, _, query = text.partition("?")
    query = "&".join(one for one in (query, mechanism) if one)
    uri = f"amqp{'s' if url.tls else ''}://{login}{url.address}{vhost}{'?' if query else ''}{query}"
    return Peer(url, uri)


@record
class Route:
    """One route in a list."""

    kind: str
    """`dynamic`, `route` or `queue`."""
    push: bool
    """Whether this cluster sends; otherwise it receives."""
    peer: str
    exchange: str
    key: str
    """Or the queue."""
    name: str
    """The name of its shovel, or of its set."""

    def words(self, here: str) -> tuple[str, str, str, str]:
        """Destination, source, exchange and key, as Qpid's tool prints them."""
        key = {"dynamic": DYNAMIC, "queue": f"queue={self.key}"}.get(self.kind, self.key)
        ends = (self.peer, here) if self.push else (here, self.peer)
        return (*ends, self.exchange, key)


class Routes:
    """The routes of one virtual host of a cluster."""

    def __init__(self, api: Api, vhost: str) -> None:
        self._api, self._vhost = api, vhost

    # -- what there is ---------------------------------------------------------------------------

    def _parameters(self, component: str) -> dict[str, Json]:
        rows = self._api.rows("parameters", component, self._vhost)
        return {name: row.get("value") for row in rows
                if (name := str(row.get("name"))).startswith(PREFIX)}  # fmt: skip

    def listed(self) -> list[Route]:
        """All routes, the dynamic ones first."""
        found = []
        for name, value in self._parameters(UPSTREAM_SET).items():
            exchange = name.removeprefix(PREFIX)
            for upstream in _upstreams(value):
                peer = upstream.removeprefix(PREFIX)
                found.append(Route("dynamic", False, peer, exchange, "", name))
        return [*found, *self._shovels()]

    def _shovels(self) -> Iterator[Route]:
        for name, value in self._parameters(SHOVEL).items():
            if not isinstance(value, dict):
                continue
            push = value.get("src-uri") == "amqp://"
            peer = _peer_in(value.get("dest-uri" if push else "src-uri"))
            exchange = str(value.get("dest-exchange", ""))
            kind, key = "queue", str(value.get("src-queue", ""))
            if "src-exchange" in value:
                kind, key = "route", str(value.get("src-exchange-key", ""))
            elif key == name:  # the queue was made for a route
                kind, key = "route", name.partition(f" {exchange} ")[2]
            yield Route(kind, push, peer, exchange, key, name)

    def links(self) -> list[tuple[str, str, str]]:
        """Peer, state, and why it does not run."""
        states: dict[str, list[tuple[str, str]]] = {
            name.removeprefix(PREFIX): [] for name in self._parameters(UPSTREAM)
        }
        for row in self._api.rows("federation-links", self._vhost):
            peer = str(row.get("upstream")).removeprefix(PREFIX)
            if peer in states:
                states[peer].append((str(row.get("status")), str(row.get("error", ""))))
        shovels = {str(row.get("name")): row for row in self._api.rows("shovels", self._vhost)}
        for route in self._shovels():
            row = shovels.get(route.name, {})
            state = str(row.get("state", "")), str(row.get("reason", ""))
            states.setdefault(route.peer, []).append(state)
        return [(peer, *_worst(found)) for peer, found in states.items()]

    # -- links -----------------------------------------------------------------------------------

    def add_link(self, peer: Peer) -> None:
        """Define or redefine the upstream."""
        name = PREFIX + peer.name
        self._api.put("parameters", UPSTREAM, self._vhost, name, body={"value": {"uri": peer.uri}})

    def delete_link(self, peer: str) -> None:
        """Delete it unless a route needs it. Raises UsageError."""
        used = [route for route in self.listed() if route.peer == peer]
        if used:
            what = ", ".join(f"{one.kind} of '{one.exchange}'" for one in used)
            raise click.UsageError(f"the link to {peer} has routes: {what}; delete them first")
        if PREFIX + peer not in self._parameters(UPSTREAM):
            raise click.UsageError(f"there is no link to {peer}; link list shows the links")
        self._api.delete("parameters", UPSTREAM, self._vhost, PREFIX + peer)

    def _delete_unused_link(self, peer: str) -> None:
        used = any(one.peer == peer for one in self.listed())
        if not used and PREFIX + peer in self._parameters(UPSTREAM):
            self._api.delete("parameters", UPSTREAM, self._vhost, PREFIX + peer)

    # -- routes ----------------------------------------------------------------------------------

    def add_dynamic(self, peer: Peer, exchange: str) -> None:
        """Bind at the peer whatever is bound to the exchange here."""
        row = self._api.fields("exchanges", self._vhost, exchange)
        name = PREFIX + exchange
        policy = row.get("policy")
        if policy not in (None, "", name):
            raise click.UsageError(
                f"exchange '{exchange}' has the policy '{policy}', and only one is in force: put "
                f'"{UPSTREAM_SET}": "{name}" into that one, or delete it'
            )
        if peer.says_how or PREFIX + peer.name not in self._parameters(UPSTREAM):
            self.add_link(peer)
        others = _upstreams(self._parameters(UPSTREAM_SET).get(name))
        names = dict.fromkeys((*others, PREFIX + peer.name))
        value: Json = [{"upstream": one} for one in names]
        self._api.put("parameters", UPSTREAM_SET, self._vhost, name, body={"value": value})
        self._api.put("policies", self._vhost, name, body={
            "pattern": exactly(exchange), "apply-to": "exchanges",
            "priority": 0, "definition": {UPSTREAM_SET: name},
        })  # fmt: skip

    def _delete_dynamic(self, route: Route) -> None:
        value = self._parameters(UPSTREAM_SET).get(route.name)
        left = [one for one in _upstreams(value) if one != PREFIX + route.peer]
        if left:
            body: Object = {"value": [{"upstream": one} for one in left]}
            self._api.put("parameters", UPSTREAM_SET, self._vhost, route.name, body=body)
            return
        try:
            self._api.delete("policies", self._vhost, route.name)
        except ApiError as problem:
            if problem.status != 404:
                raise
        self._api.delete("parameters", UPSTREAM_SET, self._vhost, route.name)

    def add_static(
        self, peer: Peer, exchange: str, key: str, *, push: bool, credit: int | None
    ) -> None:
        """Add a route by one key. Pushed messages wait in a durable queue; pulled messages come
        through the link's own queue, as in Qpid, and do not wait while the link is down."""
        value: Object = {"dest-exchange": exchange}
        if push:
            queue = _name(peer.name, exchange, key, push=True)
            self._api.put("queues", self._vhost, queue, body={"durable": True})
            body: Object = {"routing_key": key}
            self._api.post("bindings", self._vhost, "e", exchange, "q", queue, body=body)
            value |= {"src-queue": queue}
        else:
            value |= {"src-exchange": exchange, "src-exchange-key": key}
        self._shovel(peer, exchange, key, value, push=push, credit=credit)

    def add_queue(
        self, peer: Peer, exchange: str, queue: str, *, push: bool, credit: int | None
    ) -> None:
        """Route all messages of a queue to an exchange."""
        value: Object = {"src-queue": queue, "dest-exchange": exchange}
        self._shovel(peer, exchange, f"queue={queue}", value, push=push, credit=credit)

    def _shovel(
        self, peer: Peer, exchange: str, key: str, value: Object, *, push: bool, credit: int | None
    ) -> None:
        near, far = ("src-uri", "dest-uri") if push else ("dest-uri", "src-uri")
        value = {near: "amqp://", far: peer.uri, **value}
        if credit is not None:
            value["src-prefetch-count"] = credit
        name = _name(peer.name, exchange, key, push=push)
        self._api.put("parameters", SHOVEL, self._vhost, name, body={"value": value})

    def delete(self, route: Route, *, empty_link: bool) -> str:
        """Delete a route; return what remains of it, in a sentence."""
        said = ""
        if route.kind == "dynamic":
            self._delete_dynamic(route)
        else:
            self._api.delete("parameters", SHOVEL, self._vhost, route.name)
            if route.kind == "route" and route.push:
                said = self._delete_queue(route.name)
        if empty_link:
            self._delete_unused_link(route.peer)
        return said

    def _delete_queue(self, queue: str) -> str:
        """Delete the queue of a push route, unless messages wait in it."""
        try:
            self._api.delete("queues", self._vhost, queue, only={"if-empty": True})
        except ApiError as problem:
            if problem.status != 404:
                return f"its queue '{queue}' is left, with its messages: {problem}"
        return ""


def _name(peer: str, exchange: str, key: str, *, push: bool) -> str:
    name = f"{PREFIX}{'to ' if push else ''}{peer} {exchange} {key}"
    if len(name.encode()) > NAME_BYTES_MAX:
        raise click.UsageError(
            f"the names of broker, exchange and key have over {NAME_BYTES_MAX} bytes together: "
            "define a shovel by qpidctl set_parameter"
        )
    return name


def exactly(name: str) -> str:
    """A policy pattern that matches only this name."""
    return f"^{SPECIAL.sub(lambda found: chr(92) + found[0], name)}$"


def _upstreams(value: Json) -> list[str]:
    return [str(one.get("upstream")) for one in objects(value)]


def _peer_in(uri: Json) -> str:
    text = str(uri[0] if isinstance(uri, list) and uri else uri)
    try:
        return peer_name(parse_url(text.partition("?")[0], AMQP))
    except ValueError:
        return text


def _worst(found: list[tuple[str, str]]) -> tuple[str, str]:
    for state, reason in found:
        if state not in STATES:
            return WAITING, reason
    states = {state for state, _ in found}
    return STATES["starting" if "starting" in states else "running"] if found else UNUSED, ""
