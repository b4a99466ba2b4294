"""Makes the tables of docs/reference/verbs.md: RabbitMQ's verbs and columns, and qpidctl's answers.

python -m tests.verbs_page --write
"""

from __future__ import annotations

from pathlib import Path

from tests.support.generated_blocks import Blocks, run
from tools.operate.listings import LISTINGS, NOTHING
from tools.operate.qpidctl import qpidctl
from tools.operate.refused import REFUSED

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "verbs.md"

VERBS = {
    "rabbitmqctl": """
        activate_free_disk_space_monitoring add_user add_vhost authenticate_user autocomplete
        await_online_nodes await_startup cancel_sync_queue change_cluster_node_type change_password
        clear_auth_backend_cache clear_global_parameter clear_operator_policy clear_parameter
        clear_password clear_permissions clear_policy clear_topic_permissions clear_user_limits
        clear_vhost_limits close_all_connections close_all_user_connections close_connection
        cluster_status deactivate_free_disk_space_monitoring decode decrypt_conf_value delete_queue
        delete_user delete_vhost enable_feature_flag encode encrypt_conf_value environment eval
        eval_file exec export_definitions force_boot force_gc force_reset forget_cluster_node
        hash_password help import_definitions join_cluster list_bindings list_channels list_ciphers
        list_connections list_consumers list_deprecated_features list_exchanges list_feature_flags
        list_global_parameters list_hashes list_node_auth_attempt_stats list_operator_policies
        list_parameters list_permissions list_policies list_queues list_topic_permissions
        list_unresponsive_queues list_user_limits list_user_permissions list_user_topic_permissions
        list_users list_vhost_limits list_vhosts node_health_check ping purge_queue
        rename_cluster_node report reset restart_vhost resume_listeners rotate_logs schema_info
        set_cluster_name set_disk_free_limit set_global_parameter set_log_level
        set_operator_policy set_parameter set_permissions set_permissions_globally set_policy
        delete_shovel restart_shovel shovel_status federation_status restart_federation_link
        set_topic_permissions set_user_limits set_user_tags set_vhost_limits set_vhost_tags
        set_vm_memory_high_watermark shutdown start_app status stop stop_app suspend_listeners
        sync_queue trace_off trace_on update_cluster_nodes update_vhost_metadata version wait
    """,
    "rabbitmq-diagnostics": """
        alarms certificates check_alarms check_certificate_expiration
        check_if_any_deprecated_features_are_used
        check_if_cluster_has_classic_queue_mirroring_policy check_if_node_is_mirror_sync_critical
        check_if_node_is_quorum_critical check_local_alarms check_port_connectivity
        check_port_listener check_protocol_listener check_running check_virtual_hosts cipher_suites
        command_line_arguments consume_event_stream disable_auth_attempt_source_tracking
        discover_peers enable_auth_attempt_source_tracking erlang_cookie_hash erlang_cookie_sources
        erlang_version is_booting is_running list_network_interfaces listeners log_location log_tail
        log_tail_stream maybe_stuck memory_breakdown metadata_store_status observer os_env
        remote_shell reset_node_auth_attempt_metrics resolve_hostname resolver_info
        runtime_thread_stats server_version tls_versions
    """,
    "rabbitmq-queues": """
        add_member delete_member grow peek quorum_status rebalance reclaim_quorum_memory shrink
    """,
    "rabbitmq-streams": """
        activate_stream_consumer add_replica add_super_stream coordinator_status delete_replica
        delete_super_stream list_stream_connections list_stream_consumer_groups
        list_stream_consumers list_stream_group_consumers list_stream_publishers
        list_stream_tracking reset_offset restart_stream set_stream_retention_policy stream_status
        transfer_leadership
    """,
    "rabbitmq-plugins": "directories disable enable is_enabled list set",
    "rabbitmq-upgrade": """
        await_online_quorum_plus_one await_online_synchronized_mirror drain revive
    """,
}
"""The verbs of RabbitMQ 3.8 to 3.13, those of rabbitmq-streams to 4.1, each under the first of its
tools that has it."""

COLUMNS = {
    "list_queues": """
        name durable auto_delete arguments policy operator_policy effective_policy_definition pid
        owner_pid exclusive exclusive_consumer_pid exclusive_consumer_tag messages_ready
        messages_unacknowledged messages messages_ready_ram messages_unacknowledged_ram messages_ram
        messages_persistent message_bytes message_bytes_ready message_bytes_unacknowledged
        message_bytes_ram message_bytes_persistent head_message_timestamp disk_reads disk_writes
        consumers consumer_utilisation consumer_capacity memory slave_pids synchronised_slave_pids
        mirror_pids synchronised_mirror_pids state type leader members online
    """,
    "list_exchanges": "name type durable auto_delete internal arguments policy",
    "list_bindings": """
        source_name source_kind destination_name destination_kind routing_key arguments vhost
    """,
    "list_connections": """
        pid name port host peer_port peer_host ssl ssl_protocol ssl_key_exchange ssl_cipher ssl_hash
        peer_cert_subject peer_cert_issuer peer_cert_validity state channels protocol auth_mechanism
        user vhost timeout frame_max channel_max client_properties recv_oct recv_cnt send_oct
        send_cnt send_pend connected_at
    """,
    "list_channels": """
        pid connection name number user vhost transactional confirm consumer_count
        messages_unacknowledged messages_uncommitted acks_uncommitted messages_unconfirmed
        prefetch_count global_prefetch_count
    """,
    "list_consumers": """
        queue_name channel_pid consumer_tag ack_required prefetch_count active activity_status
        arguments
    """,
    "list_vhosts": "name description tags default_queue_type tracing cluster_state",
    "list_users": "user tags",
    "list_permissions": "user configure write read",
    "list_user_permissions": "vhost configure write read",
    "list_topic_permissions": "user exchange write read",
    "list_user_topic_permissions": "vhost exchange write read",
    "list_policies": "vhost name pattern apply-to definition priority",
    "list_operator_policies": "vhost name pattern apply-to definition priority",
    "list_parameters": "component name value",
    "list_global_parameters": "name value",
    "list_vhost_limits": "vhost limits",
    "list_user_limits": "user limits",
}
"""The columns of its lists."""


def _verbs(_old: str) -> str:
    rows = [
        f"| `{verb}` | {tool} | {_answer(verb)} |"
        for tool, verbs in VERBS.items()
        for verb in verbs.split()
    ]
    return "\n".join(["| verb | of | qpidctl |", "| --- | --- | --- |", *rows, ""])


def _answer(verb: str) -> str:
    """What qpidctl does for the verb.  Raises KeyError for an unknown verb."""
    if verb in REFUSED:
        return f"*refused:* {REFUSED[verb]}"
    command = qpidctl.commands[verb]
    text = command.short_help or (command.help or "").partition("\n")[0]
    return text.replace("|", "\\|")


def _columns(_old: str) -> str:
    rows = [
        "| list | RabbitMQ's columns, all known | of these empty | beyond these |",
        "| --- | --- | --- | --- |",
    ]
    for verb, names in COLUMNS.items():
        there = LISTINGS[verb].columns
        wanted = names.split()
        empty = [name for name in wanted if there[name] is NOTHING]
        more = [name for name in there if name not in wanted]
        cells = (" ".join(f"`{name}`" for name in part) for part in (wanted, empty, more))
        rows.append(f"| `{verb}` | {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


BLOCKS: Blocks = {"verbs": _verbs, "columns": _columns}

if __name__ == "__main__":
    run({PAGE: BLOCKS}, "tests.verbs_page", __doc__.partition("\n")[0])
