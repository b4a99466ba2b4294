"""`qpidd`: start one broker, alone or as a member of a cluster.

The command only collects and checks its options; `broker.process.server.run` is the broker.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import ClassVar

import click

from broker.exit_codes import Exit
from broker.options.table import OPTIONS
from broker.service.hang_up import hold_hang_ups
from tools.cli.failures import ToolError
from tools.cli.options import ignored, read_options, run_command, with_options
from tools.cli.sections import OptionsInSections
from tools.cli.shared_options import with_version
from tools.cli.streams import complain

SHOVEL_COMMAND = (sys.executable, "-P", "-m", "tools.shovel")
"""The command that starts a shovel; -P: nothing in the working directory is imported."""
EPILOG = """\b
Examples:
  A stand-alone broker, messages in memory only:
    qpidd

\b
  Three members on one machine, which wait for each other at first start:
    qpidd --cluster-name shop --cluster-size 3 --port 5672 --data-dir /var/tmp/a \\
          --cluster-bind 127.0.0.1:25672 \\
          --cluster-nodes 127.0.0.1:25672,127.0.0.1:25673,127.0.0.1:25674
    (the second and third: --port 5673 and 5674, bind 25673 and 25674, other DIRs)

\b
  The same from an option file, one value overridden:
    qpidd --config conf/member-a.conf --log-level debug

\b
  Two members and a third process that only votes, so that either member can continue alone:
    qpidd --cluster-name pair --cluster-size 2 --port 5672 --data-dir /var/tmp/a \\
          --cluster-bind 127.0.0.1:25672 --cluster-arbitrator 127.0.0.1:25674 \\
          --cluster-nodes 127.0.0.1:25672,127.0.0.1:25673,127.0.0.1:25674
    (the second: --port 5673, bind 25673; the arbitrator: bind 25674, the rest the same)

Votes decide which group of members may act: one with more than half of the votes, or with half of
them and the tie breaker. These options form the voter set at the first start. Members remember it;
later the options must not contradict it (the error names both values), and qpid-cluster changes it.
Options under which two groups could act independently are refused, and the error names the groups.

Every option may also be set in the file given by --config, as `name = value`, or in the
environment, as QPIDD_NAME (QPIDD_CLUSTER_NAME, QPIDD_PORT ...). The command line takes precedence
over the environment, and the environment over the file.

Exit codes: 0 orderly stop, 64 bad option, 65 store not usable, 69 address taken,
70 internal error, 71 clock too far off, 72 no space on the disk, 73 data directory not writable,
74 disk read-only or gone, 75 data directory in use, 76 mixed versions or settings,
77 not let in, 78 bad option or key file, 79 quorum lost (--cluster-cman),
80 another broker leads the shared store, or may, 81 disk too slow.
"""


class InSections(OptionsInSections):
    """The options by their subjects."""

    sections: ClassVar = {
        "cluster_name": "Cluster",
        "cluster_mechanism": "Who may take part in the ring",
        "cluster_votes": "Who votes, and which members may act",
        "cluster_url": "Clients",
        "loopback_users": "Users",
        "management_port": "Management, dashboard, metrics",
        "tls_cert": "TLS",
        "max_connections": "Limits of clients",
        "data_dir": "Data",
        "clock_bound": "Clock, disk, memory",
        "backups_keep": "Backups",
        "memberlog_segment_size": "Member log",
        "trace": "Log",
        "shared_store": "A shared store",
        "ha_cluster": "Active-passive clusters",
        "hac": "Pairs",
        "truncate": "Data",
        "config": "This command",
    }


@click.command(
    cls=InSections,
    name="qpidd",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@with_options(OPTIONS)
@click.option(
    "--truncate",
    is_flag=True,
    help="Start with an empty store, which the other members fill; the present store is kept as "
    "DIR/_cluster.bak.NNNN. On the command line only: in an option file it would apply to "
    "every start.",
)
@click.option("--config", metavar="FILE", envvar="QPIDD_CONFIG", help="An option file; see below.")
@with_version
def qpidd(config: str | None, truncate: bool, **typed: str | None) -> int:
    """Run an AMQP 0-9-1 message broker, alone or as one member of an active-active cluster.

    Clients may connect to any member; all members hold the same queues and messages.
    The broker runs in the foreground and logs to stderr, or to --log-file. SIGTERM or SIGINT stops
    it cleanly; SIGHUP reads the options again, and the log names what changed.
    """
    if not __debug__:
        raise ToolError(
            "refusing to run under python -O: the assertions that stop a faulty member are off",
            Exit.USAGE,
        )
    hold_hang_ups()
    named = {name.replace("_", "-"): text for name, text in typed.items() if text is not None}
    file = Path(config).absolute() if config else None
    read = partial(read_options, named, os.environ, file)
    options = read()
    if sentence := ignored(os.environ):
        complain(f"qpidd: {sentence}")
    # Imported late: --help and a bad option need neither the ring nor the store.
    from broker.process.server import run
    from broker.shovels.member_shovels import shovels_of
    from broker.watchdogs.freed_memory import share_one_heap

    share_one_heap()
    try:
        made = partial(shovels_of, SHOVEL_COMMAND)
        return run(options, read, truncate=truncate, make_shovels=made)
    except Exception:
        # Anything that gets here is our own bug: the member has stopped, and logs all it knows.
        traceback.print_exc()
        return Exit.INTERNAL


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpidd, sys.argv[1:])


if __name__ == "__main__":
    main()
