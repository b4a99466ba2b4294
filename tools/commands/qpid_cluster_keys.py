"""`qpid-cluster-keys`: make the keys by which the members of a ring recognise each other.

Layout of DIR: the secret files (mode 600), and `public/` with one public file for each key. A
member's second key gets a second file, so that old and new are allowed side by side during a change
of keys.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError, os_reason
from tools.cli.options import parse_address, run_command
from tools.cli.shared_options import with_version
from vsync.io.keys import (
    PUBLIC_SUFFIX,
    SECRET_SUFFIX,
    KeyPair,
    file_stem,
    make_pair,
    public_text,
    secret_text,
)

PUBLIC_DIR = "public"
GENERATIONS_MAX = 1_000

EPILOG = """\
A member's name is its ring address, as its --cluster-bind says.

\b
Examples:
  Keys for three members on one machine, and how the first one uses them:
    qpid-cluster-keys keys 127.0.0.1:25672 127.0.0.1:25673 127.0.0.1:25674
    qpidd --cluster-name shop --cluster-key keys/127.0.0.1_25672.key_secret \\
          --cluster-allow keys/public ...

\b
  On three machines: create all keys in one place, then copy keys/public/ to every member, and
  each secret file to its own member only, over a secure channel.

\b
  A new key for one member, while the cluster runs:
    qpid-cluster-keys --renew keys 10.0.0.1:25672
    Copy the new keys/public/*.key to every member's --cluster-allow (no restart: the directory
    is read again when it changes). Restart 10.0.0.1:25672 with the new --cluster-key. When it
    is back, delete its old public file everywhere.

\b
  To shut a member out for good: delete its public files at every other member.

Exit codes: 0 done, 1 keys exist already, 64 bad usage, 73 DIR cannot be written.
"""


@click.command(
    name="qpid-cluster-keys",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--renew", is_flag=True, help="Replace the keys of members that have one.")
@click.argument("directory", metavar="DIR")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@with_version
def qpid_cluster_keys(directory: str, names: tuple[str, ...], *, renew: bool) -> None:
    """Make a CURVE key pair for each member NAME (its HOST:PORT on the ring) under DIR.

    DIR/NAME.key_secret is for that member alone (qpidd --cluster-key). DIR/public/ is for all
    of them (qpidd --cluster-allow): who has no key there cannot take part in the ring, read what
    goes over it, or send under another member's name.
    """
    for name in names:
        try:
            address = parse_address(name)
        except ValueError as problem:
            raise ToolError(f"NAME: {problem}", Exit.USAGE) from None
        if str(address) != name or not address.port or names.count(name) > 1:
            raise ToolError(
                f"NAME: '{name}' must be given once, as --cluster-bind says it", Exit.USAGE
            )
    root = Path(directory)
    try:
        stems = {name: _stem(root, name, renew=renew) for name in names}
        (root / PUBLIC_DIR).mkdir(parents=True, exist_ok=True)
        for name, stem in stems.items():
            _write(root, stem, make_pair(name))
    except OSError as problem:
        raise ToolError(f"{root}: {os_reason(problem)}", Exit.CANNOT_CREATE) from None
    for name, stem in stems.items():
        print(f"{name}  --cluster-key {root / stem}{SECRET_SUFFIX}")
    print(f"all members  --cluster-allow {root / PUBLIC_DIR}")


def _stem(root: Path, name: str, *, renew: bool) -> str:
    """The first name without a file of this member."""
    for generation in range(1, GENERATIONS_MAX):
        stem = file_stem(name, generation)
        if not any(path.exists() for path in _paths(root, stem)):
            return stem
        if not renew:
            raise ToolError(f"{name} has a key in {root}; --renew makes another one beside it")
    raise ToolError(f"{name} has {GENERATIONS_MAX} keys in {root}; delete the old ones")


def _paths(root: Path, stem: str) -> tuple[Path, Path]:
    return root / f"{stem}{SECRET_SUFFIX}", root / PUBLIC_DIR / f"{stem}{PUBLIC_SUFFIX}"


def _write(root: Path, stem: str, pair: KeyPair) -> None:
    secret, public = _paths(root, stem)
    # Never readable by others, not even for a moment.
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secret_text(pair))
    # Moved into place whole, because members read the directory at any time.
    part = public.with_suffix(".part")
    part.write_text(public_text(pair), encoding="utf-8")
    part.chmod(0o644)
    part.replace(public)


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_cluster_keys, sys.argv[1:])


if __name__ == "__main__":
    main()
