"""The table of all options of a broker, and of those that members compare.

Options that should be equal travel in each member's state report, beside numbers of the release
that must be equal (`vsync/primary/settings.py`). So do the `REPORTED` options, which must be equal;
the other options that must be equal have checks of their own, which name both values: hellos, keys,
the voter set, the stores. Passwords do not travel.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.options import (
    access,
    bounds,
    client_ports,
    logs,
    management,
    quorum,
    retention,
    security,
)
from broker.options.client_ports import AMQP_PORT
from broker.options.modes import active_passive, pair, shared_store
from broker.options.values import Kind, Option, defaults_of

OPTIONS: Mapping[str, Option] = {
    "cluster-name": Option("", "NAME",
        "Join, or form, the cluster of this name. Without it: a stand-alone broker.", Kind.EQUAL),
    "cluster-size": Option("1", "N",
        "Number of voting members, the same at all members. The first start waits for that many; "
        "later starts find the voters in the store. Default 1; required with --cluster-nodes.",
        Kind.EQUAL),
    "cluster-bind": Option("", "HOST:PORT[,HOST:PORT]",
        "Where this member's ring socket listens. A second address, on another network, keeps the "
        "ring whole when one network fails. The first address is the member's name. Default: the "
        "interface, at the client port + 20000."),
    "cluster-nodes": Option("", "HOST:PORT,...",
        "Ring addresses of the members; may include this one. Default: find members of the same "
        "cluster name by multicast."),
    "cluster-mcastaddr": Option("", "ADDRESS",
        "Without --cluster-nodes: the multicast group by which members find each other. Default: "
        "derived from the cluster's name. Messages always travel over TCP."),
    "cluster-mcastport": Option("", "PORT",
        "UDP port for that, the same at all members. Default 5409."),
    **security.OPTIONS,
    **quorum.OPTIONS,
    "cluster-url": Option("", "URL",
        "The client address to advertise, amqp:tcp:HOST:PORT,... Default: interface and port. "
        "USER/PASSWORD@ before the first address is accepted, and not passed on."),
    "port": Option(str(AMQP_PORT), "PORT",
        "Port for clients and tools; 0 takes any free port, none listens for TLS only. Default "
        "5672."),
    "interface": Option("127.0.0.1", "ADDRESS",
        "The address to listen on for clients. Default 127.0.0.1, with ::1: only this machine. "
        "'::': all addresses."),
    **access.OPTIONS,
    **management.OPTIONS,
    **client_ports.OPTIONS,
    "data-dir": Option("", "DIR",
        "Directory of the durable state and the member log. A cluster member needs one. Default "
        "for a stand-alone broker: a temporary directory, deleted when it stops."),
    "no-data-dir": Option("no", "[yes|no]",
        "Run a member that forgets everything when it stops; the same at all members.", Kind.EQUAL),
    **bounds.OPTIONS,
    "watchdog-interval": Option("60", "SECONDS",
        "End this process, with code 1 and each thread's stack on stderr, when its event loop has "
        "not run for this long (or up to an eighth less); 0: never. Default 60."),
    "scrub-rate": Option("2000", "N",
        "How many messages at rest to read again per second, to detect bit rot; 0: none. Default "
        "2000."),
    **retention.OPTIONS,
    "trace": Option("", "FILE",
        "Record every event of the ring protocol in FILE, for ringtrace. Default: off; switched "
        "on at run time, DIR/ring.trace."),
    **logs.OPTIONS,
    **shared_store.OPTIONS,
    **active_passive.OPTIONS,
    **pair.OPTIONS,
}  # fmt: skip
"""In the order in which `qpidd --help` shows them."""
DEFAULTS = defaults_of(OPTIONS)
REPORTED: Mapping[str, str] = {name: DEFAULTS[name] for name in ("ha-cluster", "ha-promotion")}
"""Options that must be equal and have no check of their own, with their defaults."""


def settings_of(text: Mapping[str, str]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, value, whether it must be equal) of the options that members compare."""
    alike = sorted(name for name, option in OPTIONS.items() if option.kind is Kind.ALIKE)
    return (
        *((name, text[name], False) for name in alike),
        *((name, text[name].lower(), True) for name in REPORTED),
    )


def unusual_settings(settings: tuple[tuple[str, str, bool], ...]) -> tuple[tuple[str, str], ...]:
    """Return those of `settings_of` that must be equal and are not at their defaults."""
    return tuple(
        (name, value) for name, value, must in settings if must and value != REPORTED.get(name, "")
    )
