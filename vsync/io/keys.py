"""Key files of members, and the allow list of a ring.

A member has a CURVE key pair. Its *secret file* stays on its machine; its *public file* goes into
the directory that every member reads as its allow list. Both are certificates in the format of czmq
and pyzmq: lines `name = "..."`, `public-key = "..."`, `secret-key = "..."`, keys in Z85, `#`
comments.

The allow list is read again whenever its files change. A change that cannot be read leaves the list
as it was and is logged once: an operator's mistake must not exclude members.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from vsync.errors import VsyncError

SECRET_SUFFIX: Final = ".key_secret"
PUBLIC_SUFFIX: Final = ".key"
FILE_BYTES_MAX: Final = 4_096
FILES_MAX: Final = 1_024
REREAD_S: Final = 1.0
_Z85: Final = frozenset(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

Tell = Callable[[str], None]


class KeyFileError(VsyncError):
    """A key file or an allow list is unusable; says which one, why, and what to do."""


class KeyPair(NamedTuple):
    """The keys of one member, in Z85 (40 characters each)."""

    name: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.name!r}, {self.public!r})"  # never the secret in a log


def make_pair(name: str) -> KeyPair:
    """Generate a new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(name, public.decode(), secret.decode())


def file_stem(name: str, generation: int) -> str:
    """Return the file name, without suffix, for the keys of a member, by generation."""
    plain = "".join(c if c.isalnum() or c in ".-" else "_" for c in name).strip("_")
    return plain if generation == 1 else f"{plain}.{generation}"


def public_text(pair: KeyPair) -> str:
    return (
        f"#  The public key of ring member {pair.name}.  It belongs into the directory that every\n"
        "#  member names with --cluster-allow.  It is no secret, but must not change on the way.\n"
        f'metadata\n    name = "{pair.name}"\ncurve\n    public-key = "{pair.public}"\n'
    )


def secret_text(pair: KeyPair) -> str:
    return (
        f"#  The SECRET key of ring member {pair.name}.  Only that member may read this file; it\n"
        "#  names it with --cluster-key.\n"
        f'metadata\n    name = "{pair.name}"\ncurve\n    public-key = "{pair.public}"\n'
        f'    secret-key = "{pair.secret}"\n'
    )


def read_secret(path: Path) -> KeyPair:
    """Read this member's pair.  Raises KeyFileError, also when other users could read the file."""
    fields = _fields(path, private=True)
    secret = _key(path, fields, "secret-key")
    public = _key(path, fields, "public-key")
    if zmq.curve_public(secret.encode()).decode() != public:
        raise KeyFileError(
            f"{path}: its public-key does not belong to its secret-key; make new keys"
        )
    return KeyPair(_name(path, fields), public, secret)


class Allowed:
    """The allow list: the public keys in a directory, and the name for which each is allowed."""

    def __init__(self, directory: Path, warn: Tell, note: Tell) -> None:
        """Read the directory. Raises KeyFileError for any error in it.

        `warn` is called with a change that cannot be read, `note` with one that was.
        """
        self.directory = directory
        self._warn, self._note = warn, note
        self._warned = ""
        self._checked_at = float("-inf")
        self._seen = self._scan()
        self.names = self._read(self._seen)

    def keys_of(self, name: str) -> list[str]:
        """Return the public keys allowed for `name`, several while keys change."""
        return [key for key, owner in self.names.items() if owner == name]

    def refresh(self, now: float) -> bool:
        """Read changes, at most once a second; return whether the list changed."""
        if now - self._checked_at < REREAD_S:
            return False
        self._checked_at = now
        try:
            seen = self._scan()
            if seen == self._seen:
                return False
            names = self._read(seen)
        except KeyFileError as error:
            if str(error) != self._warned:
                self._warned = str(error)
                self._warn(f"{error}; the allow list stays as it was")
            return False
        self._warned = ""
        changed = names != self.names
        if changed:
            said = "; ".join(_difference(self.names, names))
            self._note(f"the allow list {self.directory} changed: {said}")
        self._seen, self.names = seen, names
        return changed

    def _scan(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, time and size of each file, to detect changes."""
        try:
            _closed(self.directory, self.directory.stat())
            with os.scandir(self.directory) as entries:
                found = [
                    (entry.name, about.st_mtime_ns, about.st_size)
                    for entry in entries
                    if entry.name.endswith(PUBLIC_SUFFIX)
                    for about in (_closed(Path(entry.path), entry.stat()),)
                ]
        except OSError as failure:
            reason = failure.strerror or failure
            raise KeyFileError(
                f"the allow list {self.directory} cannot be read: {reason}"
            ) from None
        if not found or len(found) > FILES_MAX:
            raise KeyFileError(
                f"the allow list {self.directory} holds {len(found)} files *{PUBLIC_SUFFIX}; "
                f"it needs the public key of every member, {FILES_MAX} files at most"
            )
        return tuple(sorted(found))

    def _read(self, seen: tuple[tuple[str, int, int], ...]) -> dict[str, str]:
        names: dict[str, str] = {}
        for file, _, _ in seen:
            path = self.directory / file
            fields = _fields(path, private=False)
            if "secret-key" in fields:
                raise KeyFileError(f"{path} holds a secret key; an allow list is for public ones")
            key, name = _key(path, fields, "public-key"), _name(path, fields)
            if names.setdefault(key, name) != name:
                raise KeyFileError(
                    f"{path}: the same key is allowed for {names[key]} and for {name}"
                )
        return names


def _difference(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """Describe what a change of an allow list means for each member it concerns."""
    for name in sorted({*before.values(), *after.values()}):
        old, new = ({k for k, n in keys.items() if n == name} for keys in (before, after))
        if not new:
            yield f"{name} is not let in any more"
        elif not old:
            yield f"{name} is let in"
        elif not old & new:
            yield f"{name} has another key"
        elif old != new:
            yield f"{name} has {len(new)} key{'s' * (len(new) > 1)}, {len(old)} before"


def _closed(path: Path, about: os.stat_result) -> os.stat_result:
    """Refuse a path that every user may write: any user could add a key."""
    if about.st_mode & stat.S_IWOTH:
        raise KeyFileError(
            f"{path} is writable by every user, so any of them could add a key; "
            f"run: chmod o-w {path}"
        )
    return about


def _fields(path: Path, *, private: bool) -> dict[str, str]:
    try:
        with path.open("rb") as opened:
            about = os.fstat(opened.fileno())
            if private and about.st_mode & _OTHERS:
                raise KeyFileError(
                    f"{path} holds a secret key and can be read or written by others; "
                    f"run: chmod 600 {path}"
                )
            if private and about.st_uid not in (0, os.geteuid()):
                raise KeyFileError(f"{path} holds a secret key and belongs to another user")
            text = opened.read(FILE_BYTES_MAX + 1).decode()
    except OSError as failure:
        reason = failure.strerror or failure
        raise KeyFileError(f"the key file {path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not a key file: it is not text") from None
    if len(text) > FILE_BYTES_MAX:
        raise KeyFileError(f"{path} is not a key file: more than {FILE_BYTES_MAX} bytes")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            fields[name.strip()] = value.strip().strip('"')
    return fields


def _key(path: Path, fields: dict[str, str], field: str) -> str:
    key = fields.get(field)
    if key is None:
        raise KeyFileError(f"{path} has no line '{field} = ...'; make keys with qpid-cluster-keys")
    if len(key) != 40 or not _Z85.issuperset(key):
        raise KeyFileError(f"{path}: its {field} is not a CURVE key of 40 characters")
    return key


def _name(path: Path, fields: dict[str, str]) -> str:
    name = fields.get("name", "")
    if not 0 < len(name.encode()) < 256:
        raise KeyFileError(f"{path} does not say whose key it is; it needs a line 'name = ...'")
    return name
