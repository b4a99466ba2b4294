"""Which version of the frames a member writes: the newest one that all who are to read it read.

Each member reads a range of versions.  It knows the range of another one from its settings, which
are in its hello and, as a hash, in each of its frames; so there is nothing to negotiate, and a
member reads whatever is in its range, at any time.  What it writes is chosen here:

- frames *within a ring* (token, data, wake, datagrams) in the newest version that all members of
  the ring read.  It is chosen as the ring is formed and stays as it is while that ring lasts;
- frames that *others* are to read, too (joins, commit tokens, merges, probes), in the same one, or
  in an older one for whoever was heard of since then, if the members of the ring read that as well.

A member that cannot read what it is sent drops it and sends a hello, so it is heard of by that.
"""

from __future__ import annotations

from collections.abc import Iterable

from vsync.wire.codec import Codec, Versions

KNOWN_MAX = 512
"""Members whose versions are kept, more than a ring can have: names may be forged."""


class WireVersions:
    """The versions that other members read, and what follows for the frames of this one."""

    def __init__(self, me: str, codec: Codec) -> None:
        self._me, self._codec = me, codec
        self._known: dict[str, Versions] = {me: codec.versions}
        self._ring: dict[str, Versions] = {me: codec.versions}
        self._others: dict[str, Versions] = {}  # that were heard of since the ring was formed

    def heard(self, name: str, versions: Versions) -> None:
        """A new incarnation of a member was heard of, or one that could not read a frame."""
        if name == self._me:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known, self._others = dict(self._ring), {}
        self._known[name] = versions
        if self._ring.get(name) != versions and self._others.get(name) != versions:
            self._others[name] = versions
            self._choose()

    def forming(self, names: Iterable[str]) -> None:
        """A ring of these members is being formed: its frames come next."""
        # All have been received from.  Should one be forgotten nevertheless: it reads these.
        unknown = Versions(self._codec.written_outside, self._codec.written_outside)
        self._ring = {name: self._known.get(name, unknown) for name in names}
        self._others = {}
        self._choose(newest_common(self._ring.values()))

    def _choose(self, version: int = 0) -> None:
        """Write what can be read; the frames of a ring keep their version but for another one."""
        common = newest_common(self._ring.values())
        if len(self._ring) == 1 and not self._others:
            common = self._codec.versions.oldest  # whoever it may be that hears of it first
        oldest = max(versions.oldest for versions in self._ring.values())
        for theirs in self._others.values():
            if theirs.oldest <= common and theirs.newest >= oldest:
                common = min(common, theirs.newest)
        self._codec.write(version or self._codec.written, common)


def newest_common(ranges: Iterable[Versions]) -> int:
    """The newest version in all of the ranges; any two of them overlap, hence all do."""
    oldest, newest = zip(*ranges, strict=True)
    found: int = max(max(oldest), min(newest))
    return found
