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
from broker.options import active_passive
from tools.cli.failures import ToolError
from tools.cli.options import ignored, read_options, run_command, with_options
from tools.cli.sections import OptionsInSections
from tools.cli.shared_options import with_version

SHOVEL_COMMAND = (sys.executable, "-P", "-m", "tools.shovel")
"""How a shovel is started; -P: nothing of the working directory is taken for it."""
EPILOG = """\b
Examples:
  A broker on its own, messages in memory only:
    qpidd

\b
  Three members on one machine that wait for each other at first start:
    qpidd --cluster-name shop --cluster-size 3 --port 5672 --data-dir /var/tmp/a \\
          --cluster-bind 127.0.0.1:25672 \\
          --cluster-nodes 127.0.0.1:25672,127.0.0.1:25673,127.0.0.1:25674
    (the second and third: --port 5673 and 5674, bind 25673 and 25674, other DIRs)

\b
  The same from an option file, one value overridden:
    qpidd --config conf/member-a.conf --log-level debug

\b
  Two members, and a third process that only votes, so that either member goes on alone:
    qpidd --cluster-name pair --cluster-size 2 --port 5672 --data-dir /var/tmp/a \\
          --cluster-bind 127.0.0.1:25672 --cluster-arbitrator 127.0.0.1:25674 \\
          --cluster-nodes 127.0.0.1:25672,127.0.0.1:25673,127.0.0.1:25674
    (the second: --port 5673, bind 25673; the arbitrator: bind 25674, the rest the same)

Which groups of members may act is decided by votes: more than half of them, or half with the
tie breaker. Members remember the voter set of their cluster; these options form it at first start,
must not contradict it later (both values are named), and it is changed by qpid-cluster. Options
under which two groups could act apart are refused with the two groups.

Every option may also stand in the file given by --config, as `name = value`, or in
the environment, as QPIDD_NAME (QPIDD_CLUSTER_NAME, QPIDD_PORT ...). The command line
wins over the environment, the environment over the file.

Exit codes: 0 orderly stop, 64 bad option, 65 store not usable, 69 address taken,
70 internal error, 71 clock too far off, 72 no space on the disk, 73 data directory not writable,
74 disk too slow, 75 data directory in use, 76 mixed versions or settings,
77 not let in, 78 bad option or key file, 79 quorum lost (--cluster-cman),
80 another broker leads the shared store, or may.
"""


class InSections(OptionsInSections):
    """The options by their subjects."""

    sections: ClassVar = {
        "cluster_name": "Cluster",
        "cluster_key": "Who may take part in the ring",
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
        "truncate": "Data",
        "shared_store": "A store that several brokers share",
        "ha_cluster": "Active-passive clusters",
        "hac": "Pairs",
        "config": "This command",
    }


@click.command(
    cls=InSections,
    name="qpidd",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--cluster-name",
    metavar="NAME",
    help="Join (or form) the cluster of this name. Without it: one broker on its own.",
)
@click.option(
    "--cluster-size",
    metavar="N",
    help="How many members vote, the same at all members. The first start waits for that many; "
    "later starts find the voters in the store. Default 1; to be given with --cluster-nodes.",
)
@click.option(
    "--cluster-bind",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Where this member's ring socket listens; a second address, on another network, keeps "
    "the ring whole when one network is lost. The first is the member's name. "
    "Default: the interface, at the client port + 20000.",
)
@click.option(
    "--cluster-nodes",
    metavar="HOST:PORT,...",
    help="Ring addresses of the members; its own may be among them. "
    "Default: find members of the same name by multicast.",
)
@click.option(
    "--cluster-mcastaddr",
    metavar="ADDRESS",
    help="The multicast group over which members find each other, without --cluster-nodes. "
    "Default: made from the cluster's name. Messages themselves go over TCP.",
)
@click.option(
    "--cluster-mcastport",
    metavar="PORT",
    help="Its UDP port, the same at all members. Default 5409.",
)
@click.option(
    "--cluster-key",
    metavar="FILE",
    help="This member's secret key: ring connections are encrypted, and only members whose keys "
    "are in --cluster-allow take part. Make keys with qpid-cluster-keys.",
)
@click.option(
    "--cluster-allow",
    metavar="DIR",
    help="The public keys of all members, own one included. Read again when it changes.",
)
@click.option(
    "--cluster-mechanism",
    metavar="WHICH",
    help="CURVE (keys), PLAIN (user name and password, sent in clear) or ANONYMOUS (whoever "
    "reaches the ring's port takes part). Default: what the other options imply; with none of "
    "them ANONYMOUS, but only where --cluster-bind is a loopback address.",
)
@click.option("--cluster-username", metavar="NAME", help="For PLAIN: the same on all members.")
@click.option(
    "--cluster-password",
    metavar="WORD",
    help="For PLAIN. Others can see your command line: better in the environment or the file.",
)
@click.option(
    "--cluster-votes",
    metavar="NAME=N,...",
    help="Votes of members, by ring address; 1 for who is not named. A group needs more than half.",
)
@click.option(
    "--cluster-arbitrator",
    metavar="HOST:PORT",
    help="Ring address of a process that only votes: no data, no clients. The same on all members; "
    "the one with this --cluster-bind is it. Lets either of two members go on alone.",
)
@click.option(
    "--cluster-auto-tie-breaker",
    metavar="WHICH",
    help="Of two equal halves the one with this voter goes on: lowest, highest, or a list "
    "of ring addresses, of which the first that counts is meant. Default no.",
)
@click.option(
    "--cluster-wait-for-all",
    metavar="yes|no",
    help="A start, or a return after the quorum was lost, waits for every voter. Default no.",
)
@click.option(
    "--cluster-last-man-standing",
    metavar="yes|no",
    help="Voters that are away for a window stop counting, one by one, "
    "while the others have a quorum; they count again when they are back. Default no.",
)
@click.option(
    "--cluster-last-man-standing-window",
    metavar="MS",
    help="How long a voter is away before it stops counting. Default 10000.",
)
@click.option(
    "--cluster-cman",
    metavar="yes|no",
    help="A member that loses the quorum stops at once (code 79), as in Qpid under CMAN; without "
    "it the member serves nobody and comes back by itself. Default no.",
)
@click.option(
    "--cluster-expected-votes",
    metavar="N",
    help="Count the quorum from so many votes. Default: all that there are.",
)
@click.option(
    "--cluster-two-node",
    metavar="yes|no",
    help="Either of two members may go on alone. Refused without --cluster-arbitrator: "
    "cut apart, both would. Default no.",
)
@click.option(
    "--cluster-url",
    metavar="URL",
    help="The client address to advertise, amqp:tcp:HOST:PORT,... Default: interface and port. "
    "USER/PASSWORD@ before the first address is accepted and told to nobody.",
)
@click.option(
    "--port",
    metavar="PORT",
    help="Where clients and tools connect; 0 takes any free port, none listens for TLS only. "
    "Default 5672.",
)
@click.option(
    "--interface",
    metavar="ADDRESS",
    help="The address to listen on for clients. Default 127.0.0.1: only this machine.",
)
@click.option(
    "--loopback-users",
    metavar="USER,...",
    help="Users who may log in from this machine only; none: all may from everywhere. "
    "Default: guest, whose password everybody knows.",
)
@click.option(
    "--cert-login-from",
    metavar="WHICH",
    help="Which name in a client's verified certificate is the user, with the mechanism EXTERNAL: "
    "distinguished-name (default), common-name, or the first alternative name: dns, email, uri.",
)
@click.option(
    "--anonymous-user",
    metavar="NAME",
    help="Let clients in that name nobody (the mechanism ANONYMOUS), as this user, from where this "
    "user may log in. Default: they are refused.",
)
@click.option(
    "--auth-backends",
    metavar="LIST",
    help="Where users are looked for, in this order: internal (the cluster's definitions), file, "
    "http (a server is asked). Default: internal.",
)
@click.option(
    "--auth-file",
    metavar="FILE",
    help="The users of the back end file: lines NAME:HASH:TAG,TAG. Read again at SIGHUP.",
)
@click.option(
    "--acl-file",
    metavar="FILE",
    help="Qpid's rules (acl allow|deny USER ACTION OBJECT ...) in place of the permissions of the "
    "cluster, for clients of this member. Read again at SIGHUP.",
)
@click.option(
    "--auth-http-user-path",
    metavar="URL",
    help="For the back end http, as RabbitMQ's auth_http.user_path: where a server answers 'allow' "
    "(and tags) or 'deny' to a user's name and password.",
)
@click.option(
    "--auth-http-vhost-path", metavar="URL", help="The same to a virtual host that a user enters."
)
@click.option(
    "--auth-http-resource-path",
    metavar="URL",
    help="The same to a permission (configure, write, read) for a queue or an exchange.",
)
@click.option(
    "--auth-http-topic-path",
    metavar="URL",
    help="The same to a routing key of a topic exchange. All four are needed.",
)
@click.option(
    "--auth-http-method",
    metavar="get|post",
    help="How it is asked; with get the password is in the URL, and so in the server's logs. "
    "Default get, as in RabbitMQ.",
)
@click.option(
    "--auth-http-ca",
    metavar="FILE",
    help="Certificates (PEM) of who may have signed the server's, for https. Default: those whom "
    "this machine trusts.",
)
@click.option(
    "--auth-cache-seconds",
    metavar="N",
    help="How long what the server has allowed is kept; 0: it is asked each time. Logins and "
    "refusals are not kept. Default 15.",
)
@click.option(
    "--management-port",
    metavar="PORT",
    help="Where the management API (HTTP) listens; 0 takes any free port, off: there is none. "
    "Default: the client port + 10000, so 15672.",
)
@click.option(
    "--management-tls-port",
    metavar="PORT",
    help="Where the management API is served over TLS, with --tls-cert. RabbitMQ has 15671. "
    "Default off; with --management-port off it is the only way to the API.",
)
@click.option(
    "--management-interface",
    metavar="ADDRESS",
    help="The address to listen on for the management API. Default: the one of --interface.",
)
@click.option(
    "--prometheus-port",
    metavar="PORT",
    help="Where metrics for Prometheus are served without a login, at the address of "
    "--management-interface: /metrics, /metrics/per-object, /metrics/detailed. RabbitMQ has 15692. "
    "Default off: then they are at the management port only, with a user's name and password.",
)
@click.option(
    "--load-definitions",
    metavar="FILE",
    help="Definitions (users, queues, policies ...) to load when this member serves, as the "
    "management API exports them. What is there already is kept or brought in line.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    help="Listen for TLS, too, with this certificate (PEM, followed by those between it and its "
    "root). Read again at SIGHUP.",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    help="Its private key (PEM, without a password). Default: in the file of the certificate.",
)
@click.option("--tls-port", metavar="PORT", help="Where clients connect over TLS. Default 5671.")
@click.option(
    "--tls-ca",
    metavar="FILE",
    help="Certificates (PEM) of who may have signed those of clients.",
)
@click.option(
    "--tls-verify",
    metavar="WHOM",
    help="none: clients are asked for no certificate; peer: one that is given must be good; "
    "require: there must be one. Default peer with --tls-ca, else none.",
)
@click.option(
    "--max-connections",
    metavar="N",
    help="How many clients may be connected. Default auto: what the open files of the process "
    "allow.",
)
@click.option(
    "--connection-limit-per-ip",
    metavar="N",
    help="How many of one address (of IPv6, of one network of 64 bits). Default 0: no limit.",
)
@click.option(
    "--max-negotiating",
    metavar="N",
    help="How many may be connected and not logged in yet; one address may have half. "
    "Default 1000.",
)
@click.option(
    "--max-negotiate-time",
    metavar="MS",
    help="How long a client may take from its connection to its login, TLS included. "
    "Default 10000.",
)
@click.option(
    "--max-message-size",
    metavar="SIZE",
    help="How large the body of a message may be. Default 128MiB; at most 512MiB.",
)
@click.option(
    "--consumer-timeout",
    metavar="MS",
    help="How long a consumer may hold a delivery without acknowledging it, where its queue does "
    "not say (x-consumer-timeout); then its channel is closed. 0: for ever. Default 1800000.",
)
@click.option(
    "--heartbeat",
    metavar="SECONDS",
    help="The interval of heartbeats that is suggested to clients; each may agree on another one. "
    "0: none. Default 60.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=str,
    help="Where durable state and the member log live. A member of a cluster needs it. "
    "Default, for a broker on its own: a temporary one, gone when it stops.",
)
@click.option(
    "--no-data-dir",
    is_flag=False,
    flag_value="yes",
    metavar="[yes|no]",
    help="A member that may forget everything when it stops; the same at all members.",
)
@click.option(
    "--clock-bound",
    metavar="SECONDS",
    help="A member whose clock is further from the cluster's time may not join, and is named "
    "when it drifts off later. Default 10.",
)
@click.option(
    "--disk-lag-max",
    metavar="SECONDS",
    help="A member whose disk is longer behind leaves; from a tenth of it on it slows all down. "
    "Default 30.",
)
@click.option(
    "--disk-backlog-max",
    metavar="MB",
    help="The same in megabytes that were applied and are not durable. Default 256.",
)
@click.option(
    "--watchdog-interval",
    metavar="SECONDS",
    help="End this process, with code 1 and what each thread was doing on stderr, when its event "
    "loop stands still for so long, or up to an eighth less; 0: never. Default 60.",
)
@click.option(
    "--disk-free-limit",
    metavar="SIZE|SHARE",
    help="With less free space than this (2GB, 512MiB, 0.1 of the disk), publishers of the whole "
    "cluster are blocked; consumers go on. 0: never. Default auto: 256MB, or a tenth of a smaller "
    "disk, and room for a checkpoint.",
)
@click.option(
    "--memory-limit",
    metavar="SIZE|SHARE",
    help="The same when this broker holds more memory than this. 0: never. Default 0.6 of the "
    "machine's, or of its control group's.",
)
@click.option(
    "--page-memory",
    metavar="SIZE",
    help="Messages that wait in long queues take about so much memory (64MiB, 2GB); more of them "
    "wait in a file of the data directory. 0: all wait in memory. Default 32MiB.",
)
@click.option(
    "--scrub-rate",
    metavar="N",
    help="How many messages at rest to read again a second, to find rot; 0 for none. Default 2000.",
)
@click.option(
    "--backups-keep",
    metavar="N",
    help="How many stores that were set aside (DIR/_cluster.bak.NNNN) stay. One that may be the "
    "only copy of something stays in any case. 0: all. Default 3.",
)
@click.option(
    "--backups-keep-days", metavar="N", help="And those written in the last N days. Default 7."
)
@click.option(
    "--backups-keep-size",
    metavar="SIZE|SHARE",
    help="But together no more than this, or than this share of the disk; 0: any size. "
    "Default 0.2.",
)
@click.option(
    "--memberlog-segment-size",
    metavar="MB",
    help="Begin a new file of the member log at this size. Default 64.",
)
@click.option(
    "--memberlog-segment-time",
    metavar="MINUTES",
    help="Begin a new file of the member log after so long, if anything was written. Default 60.",
)
@click.option(
    "--memberlog-compress",
    metavar="yes|no",
    help="Compress closed files of the member log, in a process of low priority. Default yes.",
)
@click.option(
    "--memberlog-keep-days",
    metavar="N",
    help="Drop closed files of the member log that are older; 0: never. Default 30.",
)
@click.option(
    "--memberlog-keep-size",
    metavar="SIZE|SHARE",
    help="Drop the oldest closed files above this total (2GB, 0.1 of the disk); 0: never. "
    "Default 0.1.",
)
@click.option(
    "--memberlog-drop-unverified",
    metavar="yes|no",
    help="Drop them even if DIR/memberlog/verified does not name them. Default yes.",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Write every fact of the ring protocol into FILE, for ringtrace. "
    "Default: off, and DIR/ring.trace when it is switched on at run time.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default info.")
@click.option(
    "--log-file",
    metavar="FILE",
    help="Log into FILE, which is opened again at SIGHUP. Default: standard error.",
)
@click.option(
    "--log-format", metavar="FORM", help="text, or json: one object a line. Default text."
)
@click.option(
    "--truncate",
    is_flag=True,
    help="Start with an empty store; the present one is kept as DIR/_cluster.bak.NNNN. Among other "
    "members this one is filled by them. On the command line only: in a file it would do so at "
    "each start.",
)
@with_options(active_passive.HELP)
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
    named = {name.replace("_", "-"): text for name, text in typed.items() if text is not None}
    file = Path(config).absolute() if config else None
    read = partial(read_options, named, os.environ, file)
    options = read()
    if sentence := ignored(os.environ):
        print(f"qpidd: {sentence}", file=sys.stderr)
    # Imported late: --help and a bad option need neither the ring nor the store.
    from broker.process.server import run
    from broker.shovels.member_shovels import shovels_of
    from broker.watchdogs.freed_memory import share_one_heap

    share_one_heap()
    try:
        made = partial(shovels_of, SHOVEL_COMMAND)
        return run(options, read, truncate=truncate, make_shovels=made)
    except Exception:
        # Whatever gets here is our own bug: the member has stopped, and logs all it knows.
        traceback.print_exc()
        return Exit.INTERNAL


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpidd, sys.argv[1:])


if __name__ == "__main__":
    main()
