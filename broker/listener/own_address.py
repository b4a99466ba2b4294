"""Where clients reach a broker that listens at all addresses of its machine.

`0.0.0.0` and `::` are no addresses for others: what is shown to clients (known hosts,
`amq.failover`, who leads a shared store) has the one by which this machine reaches other networks,
or its name where it has none.
"""

from __future__ import annotations

import re
import socket

_ANYWHERE = re.compile(r"(?<=:)(?:0\.0\.0\.0|\[::\])(?=:\d)")
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are nobody's (RFC 5737, RFC 3849): nothing is sent there."""


def reachable(url: str) -> str:
    """The URL with an address of this machine in place of all of them."""
    return _ANYWHERE.sub(lambda match: _own(match[0]), url)


def _own(anywhere: str) -> str:
    family = socket.AF_INET6 if anywhere.startswith("[") else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.connect((_ELSEWHERE[family], 9))
            found = str(tried.getsockname()[0])
    except OSError:  # no way to other networks
        return socket.gethostname()
    return f"[{found}]" if family == socket.AF_INET6 else found
