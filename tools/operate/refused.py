"""Verbs of rabbitmqctl and its kin that qpidctl refuses, each with advice what to do instead.

A script that uses one of them ends at once with code 64 and this sentence: it must not continue as
if something had been done.
"""

from __future__ import annotations

from collections.abc import Mapping

_EVERY_QUEUE = "every queue is on every member"
_NO_ERLANG = "there is no Erlang here"
_START = "start the member with the --cluster-name and --cluster-nodes of those that run"
_OPTION = (
    "it is an option of each member: put {0} into the file of its --config and send it SIGHUP, or "
    "restart one without a file with --{0}"
)
_NO_QUEUE_PROCESS = "no queue has a process or a leader of its own here"
_NO_PLUGINS = (
    "there are no plug-ins: the management API, /metrics, shovels and federation are part of each "
    "member; docs/COMPATIBILITY.md says what is not there"
)
_AMQP_STREAMS = "streams are read and written over AMQP 0-9-1"

REFUSED: Mapping[str, str] = {
    # The process of a member, and its parts.
    "eval": f"{_NO_ERLANG} to evaluate; ask by --formatter json, or by the HTTP API",
    "eval_file": f"{_NO_ERLANG} to evaluate; ask by --formatter json, or by the HTTP API",
    "exec": f"{_NO_ERLANG} to execute; ask by --formatter json, or by the HTTP API",
    "remote_shell": f"{_NO_ERLANG}; ask by --formatter json, or by the HTTP API",
    "observer": f"{_NO_ERLANG}; qpid-stat -i 1 shows a table again and again",
    "erlang_version": f"{_NO_ERLANG}; qpidctl version prints the release of this software",
    "erlang_cookie_hash": f"{_NO_ERLANG}; the ring's key is that of --cluster-key",
    "erlang_cookie_sources": f"{_NO_ERLANG}; the ring's key is that of --cluster-key",
    "runtime_thread_stats": f"{_NO_ERLANG}; qpid-stat -m and /metrics show what a member uses",
    "maybe_stuck": f"{_NO_ERLANG}; qpid-cluster shows members that do not answer",
    "force_gc": "memory is freed as messages go; qpid-stat -m shows what a member holds",
    "memory_breakdown": "qpid-stat -m shows what a member holds, qpidctl status its limit",
    "stop": "stop a member by qpid-cluster -s ID",
    "shutdown": "stop a member by qpid-cluster -s ID",
    "stop_app": "a member stops as a whole: qpid-cluster -s ID",
    "start_app": "a member starts with its process: qpidd, or your service manager",
    "wait": "there is no file of a process id to wait for: qpidctl await_startup -t SECONDS",
    "is_booting": "qpidctl check_running says whether it serves, await_startup waits until it does",
    "suspend_listeners": "qpidctl drain refuses new clients and disconnects the present ones",
    "resume_listeners": "qpidctl revive lets clients in again",
    "environment": "qpidd --help lists the options; qpid-cluster --diagnose collects them",
    "os_env": "qpid-cluster --diagnose collects what a report of a fault should hold",
    "command_line_arguments": "ask your service manager, or ps; qpidd --help lists the options",
    "schema_info": "there is no such schema; docs/MEMBERLOG.md says what a member records",
    "metadata_store_status": "definitions are part of the replicated state: qpidctl cluster_status",
    "report": "qpid-cluster --diagnose FILE writes one archive",
    # The log.
    "rotate_logs": "send the broker SIGHUP, or let logrotate do it",
    "log_location": "it is what --log-file says; without it the log is on stderr",
    "log_tail": "read the file of --log-file, or ask your service manager",
    "log_tail_stream": "read the file of --log-file, or ask your service manager",
    "consume_event_stream": "follow the log; with --log-format json a program reads it",
    "set_log_level": _OPTION.format("log-level"),
    # The cluster.
    "reset": "start the member with an empty --data-dir, or with another one",
    "force_reset": "start the member with an empty --data-dir, or with another one",
    "force_boot": "a majority of the voters must be there; for a member that is the last one, for "
    "good: qpid-cluster-store -c --sole-voter",
    "join_cluster": f"{_START}; qpid-cluster --add-voter gives it a vote",
    "change_cluster_node_type": "members are all alike; one that only votes is an arbitrator: "
    "the one at --cluster-arbitrator",
    "rename_cluster_node": "take the vote of the old name by qpid-cluster --remove-voter ID, then "
    + _START,
    "update_cluster_nodes": "give the member another --cluster-nodes at its start",
    "discover_peers": "qpidctl cluster_status shows the members; --cluster-nodes names them",
    "forget_cluster_node": "take its vote by qpid-cluster --remove-voter ID",
    "set_cluster_name": "the name is that of --cluster-name at the start, equal at all members",
    "enable_feature_flag": "new behaviour is switched on by qpid-cluster --upgrade",
    "list_feature_flags": "there is one version for all: qpid-cluster shows it, --upgrade raises "
    "it",
    "list_deprecated_features": "there are none; CHANGELOG.md says what changes",
    "check_if_any_deprecated_features_are_used": "there are none; CHANGELOG.md says what changes",
    "list_node_auth_attempt_stats": "/metrics counts refused and slowed logins; the log names who "
    "it was",
    "reset_node_auth_attempt_metrics": "counters begin again with the process only; /metrics has "
    "them",
    "enable_auth_attempt_source_tracking": "the log names the address of each refused login",
    "disable_auth_attempt_source_tracking": "the log names the address of each refused login",
    # Queues.
    "list_unresponsive_queues": f"{_NO_QUEUE_PROCESS} that could hang; qpid-cluster shows members "
    "that do not answer",
    "quorum_status": f"{_NO_QUEUE_PROCESS}: qpidctl cluster_status is that of all queues",
    "add_member": f"{_EVERY_QUEUE}; qpid-cluster --add-voter gives a member a vote",
    "delete_member": f"{_EVERY_QUEUE}; qpid-cluster --remove-voter takes a member's vote",
    "grow": f"{_EVERY_QUEUE}; qpid-cluster --add-voter gives a member a vote",
    "shrink": f"{_EVERY_QUEUE}; qpid-cluster --remove-voter takes a member's vote",
    "reclaim_quorum_memory": f"{_NO_QUEUE_PROCESS}; qpid-stat -m shows what a member holds",
    "check_if_cluster_has_classic_queue_mirroring_policy": f"mirrored queues stay: {_EVERY_QUEUE}",
    "transfer_leadership": _NO_QUEUE_PROCESS,
    "peek": "rabbitmqadmin get, or the dashboard, shows messages",
    # Streams.
    "stream_status": "qpidctl list_queues name type messages first_offset next_offset shows them",
    "coordinator_status": f"{_NO_QUEUE_PROCESS}: qpidctl cluster_status is that of all queues",
    "add_replica": f"{_EVERY_QUEUE}; qpid-cluster --add-voter gives a member a vote",
    "delete_replica": f"{_EVERY_QUEUE}; qpid-cluster --remove-voter takes a member's vote",
    "restart_stream": f"{_NO_QUEUE_PROCESS} to restart",
    "set_stream_retention_policy": "a policy does it: qpidctl set_policy NAME PATTERN "
    "'{\"max-age\": \"7D\"}' --apply-to streams",
    "add_super_stream": "there are no super streams: bind several streams to an exchange of type "
    "x-consistent-hash",
    "delete_super_stream": "there are no super streams: qpidctl delete_queue deletes a stream",
    "list_stream_connections": f"{_AMQP_STREAMS}: qpidctl list_connections has all connections",
    "list_stream_publishers": f"{_AMQP_STREAMS}: qpidctl list_channels has the publishers",
    "list_stream_consumers": f"{_AMQP_STREAMS}: qpidctl list_consumers queue_name offset "
    "offset_lag",
    "list_stream_consumer_groups": f"{_AMQP_STREAMS}, without groups of consumers",
    "list_stream_group_consumers": f"{_AMQP_STREAMS}, without groups of consumers",
    "activate_stream_consumer": f"{_AMQP_STREAMS}, without groups of consumers",
    "list_stream_tracking": "offsets are the consumers' to keep; qpidctl list_consumers queue_name "
    "offset offset_lag shows how far each is",
    "reset_offset": "offsets are the consumers' to keep: consume with another x-stream-offset",
    # Plug-ins.
    "list": _NO_PLUGINS,
    "enable": _NO_PLUGINS,
    "disable": _NO_PLUGINS,
    "set": _NO_PLUGINS,
    "is_enabled": _NO_PLUGINS,
    "directories": _NO_PLUGINS,
    # Options of a member.
    "set_vm_memory_high_watermark": _OPTION.format("memory-limit"),
    "set_disk_free_limit": _OPTION.format("disk-free-limit"),
    "activate_free_disk_space_monitoring": _OPTION.format("disk-free-limit (auto: on, 0: off)"),
    "deactivate_free_disk_space_monitoring": _OPTION.format("disk-free-limit (auto: on, 0: off)"),
    "encode": "option files hold no encrypted values; secrets stand in files of their own",
    "decode": "option files hold no encrypted values; secrets stand in files of their own",
    "encrypt_conf_value": "option files hold no encrypted values; use files of their own",
    "decrypt_conf_value": "option files hold no encrypted values; use files of their own",
    "list_ciphers": "TLS 1.2 and 1.3 are spoken, with the ciphers of OpenSSL: openssl ciphers -v",
    "cipher_suites": "TLS 1.2 and 1.3 are spoken, with the ciphers of OpenSSL: openssl ciphers -v",
    "tls_versions": "TLS 1.2 and 1.3 are spoken; no option changes that",
    "certificates": "openssl x509 -noout -text -in FILE shows the certificate of --tls-cert",
    "list_hashes": "qpidctl hash_password makes a hash of SHA-256; users may have SHA-512, too",
    "trace_on": "there is no amq.rabbitmq.trace: bind a queue of your own to the exchange",
    "trace_off": "there is no amq.rabbitmq.trace, so nothing is traced",
    "clear_auth_backend_cache": "SIGHUP forgets what a server allowed, and reads files of users",
    # This machine and its network.
    "alarms": "qpidctl cluster_status lists the alarms, check_alarms fails when there is one",
    "listeners": "qpidctl status lists them",
    "check_port_connectivity": "qpidctl ping connects; check_port_listener asks the member",
    "list_network_interfaces": "ip addr lists them",
    "resolve_hostname": "getent hosts NAME does it",
    "resolver_info": "see /etc/resolv.conf and /etc/nsswitch.conf",
    # This command.
    "autocomplete": "qpidctl --help says how the shell completes verbs and options",
}  # fmt: skip
"""Each verb with advice what to do instead; no sentence ends with a full stop."""

_QUEUE = "qpid-config add queue NAME makes a queue"
_EXCHANGE = "qpid-config add exchange TYPE NAME makes an exchange"
ELSEWHERE: Mapping[str, str] = {
    "declare": f"{_QUEUE}, {_EXCHANGE}",
    "declare_queue": _QUEUE,
    "add_queue": _QUEUE,
    "create_queue": _QUEUE,
    "declare_exchange": _EXCHANGE,
    "add_exchange": _EXCHANGE,
    "create_exchange": _EXCHANGE,
    "delete_exchange": "qpid-config del exchange NAME deletes one",
    "bind": "qpid-config bind EXCHANGE QUEUE [KEY] makes a binding",
    "unbind": "qpid-config unbind EXCHANGE QUEUE [KEY] deletes a binding",
    "publish": "spout publishes lines",
    "get": "drain reads messages, drain --browse leaves them there",
}
"""Verbs of other commands, each with that command."""
