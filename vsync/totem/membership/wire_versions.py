"""Chooses the frame version that a member writes: the newest one that all intended readers read.

Each member reads a range of versions. It knows another member's range from its settings, which are
in its hello and, as a hash, in each of its frames. So there is nothing to negotiate, and a member
reads any version in its range, at any time. The version that it writes is chosen here:

- frames *within a ring* (token, data, wake, datagrams) in the newest version that all members of
  the ring read. It is chosen when the ring is formed, and does not change while that ring lasts;
- frames that *others* are to read, too (joins, commit tokens, merges, probes), in the same one, or
  in an older one for members heard of since then, if the members of the ring read that as well.

A member that cannot read a frame drops it and sends a hello, by which it is heard of.
"""

from __future__ import annotations

from collections.abc import Iterable

from vsync.wire.codec import Codec, Versions

KNOWN_MAX = 512
"""Members whose versions are kept, more than a ring can have: names may be forged."""


class WireVersions:
    """The versions that other members read, and the resulting versions of this member's frames."""

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
        # Frames of all have been received. Should one be forgotten nevertheless: it reads these.
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
    """The newest version common to all ranges; any two of them overlap, hence all do."""
    oldest, newest = zip(*ranges, strict=True)
    found: int = max(max(oldest), min(newest))
    return found
