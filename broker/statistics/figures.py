"""Each member's measurements of itself: the closed list, with the meaning of each figure.

A figure that only grows ends in `_total`; it counts from the start of the member's process.
"""

from __future__ import annotations

from typing import TypeAlias

Figures: TypeAlias = dict[str, float]

FIGURES = {
    # the process
    "uptime_s": "Seconds since the broker process started",
    "pid": "Process id",
    "processors": "Processors that the process may use",
    "cpu_s_total": "Seconds of processor time that the process took",
    "open_fds": "Open file descriptors",
    "max_fds": "Open file descriptors limit",
    "memory_bytes": "Memory that holds something of this process",
    "memory_limit_bytes": "Memory above which publishers are blocked",
    "disk_free_bytes": "Room for the state: free on the disk, or reusable in the store",
    "disk_free_limit_bytes": "Room below which publishers are blocked",
    "late_recent": "Times in ten minutes that the process came late by more than the ring's lease",
    "late_recent_s": "Seconds that it was late, in these ten minutes",
    "late_longest_s": "Seconds of the longest of them",
    "late_since_s": "Seconds since the first of them",
    "late_by_work_s": "Those of the seconds that were long pieces of its own work",
    "late_by_memory_s": "Those of the seconds in which memory that was paged out was read back",
    "certificate_ends_at": "Time at which the certificate for clients ends; 0: there is none",
    # its clients
    "client_sockets": "Client connections, those that have not logged in yet included",
    "clients_refused_recent": "Connections in ten minutes that a limit of connections kept out",
    "clients_refused_since_s": "Seconds since the first of them",
    "client_received_bytes_total": "Bytes that clients sent",
    "client_sent_bytes_total": "Bytes that were sent to clients",
    "client_blocked_total": "Times that a publisher was told to wait",
    "logins_clients_total": "Logins of clients that were good",
    "logins_clients_refused_total": "Logins of clients that were refused",
    "logins_operators_total": "Logins of operators, over HTTP and by tools, that were good",
    "logins_operators_refused_total": "Logins of operators that were refused",
    "messages_confirmed_total": "Publishes confirmed to clients of this member",
    "confirm_p50_s": "Seconds from a publish to its confirm, median of the latest ones",
    "confirm_p99_s": "The same, 99 of 100 are faster",
    # the ring
    "ring_members": "Members of the ring",
    "ring_view_changes_total": "Rings installed",
    "ring_rotations_total": "Rotations of the token",
    "ring_rotation_s_total": "Seconds that these rotations took",
    "ring_rotation_s": "Seconds of one rotation, smoothed",
    "ring_retransmitted_total": "Frames sent again because a member lacked them",
    "ring_asked_total": "Frames asked for",
    "ring_token_lost_total": "Times that the token did not come in time",
    "ring_suspected_falsely_total": "Times that a ring was given up, and nobody had failed",
    "ring_frames_sent_total": "Frames sent, to each peer",
    "ring_frames_received_total": "Frames received",
    "ring_sent_bytes_total": "Bytes sent to peers",
    "ring_received_bytes_total": "Bytes received from peers",
    "ring_backlog_bytes": "Bytes of this member's commands that are not applied yet",
    # the primary component
    "quorum_quorate": "1: this member is in a primary view",
    "quorum_serving": "1: this member serves clients",
    "pair_alone": "1: this member is one of a pair, and went on without the other one",
    "ha_active": "1: this member is the active one of an active-passive cluster, as it knows",
    "quorum_votes": "Votes of the members that have the state",
    "quorum_needed": "Votes of a quorum",
    "quorum_expected": "Votes of all voters",
    "quorum_epoch": "Epoch: primary views so far",
    "quorum_position": "Position in the history that this member has applied",
    "quorum_durable": "Position that a quorum has made durable",
    "quorum_halted": "1: this member found a fault of its own, and serves no more",
    "transfer_share": "Part of the state that was received; 1 where no transfer goes on",
    # the store
    "store_commits_total": "Transactions, each made durable",
    "store_entries_total": "Entries of the history that they held",
    "store_checkpoints_total": "Checkpoints written",
    "store_checkpoints_given_up_total": "Checkpoints given up, as there was no space for them",
    "store_checkpoint_under_way": "1: a checkpoint is being written, or was asked for",
    "store_log_bytes": "Bytes of log behind the checkpoint, which a start executes again",
    "store_log_limit_bytes": "Bytes of it with which the next checkpoint is due",
    "store_commit_p50_s": "Seconds of a transaction, median of the latest ones",
    "store_commit_p99_s": "The same, 99 of 100 are faster",
    "slow_commits_recent": "Commits in ten minutes that took longer than a quarter of a second",
    "slow_commits_recent_s": "Seconds that they took",
    "slow_commits_longest_s": "Seconds of the longest of them",
    "slow_commits_since_s": "Seconds since the first of them",
    "store_waiting_bytes": "Bytes of entries that are not durable yet",
    "store_full": "1: the store waits for space on its disk",
    # pages of waiting messages
    "pages_written_total": "Pages of waiting messages that were written to disk",
    "pages_refused_total": "Those for which there was no room on the disk",
    "pages_ahead_total": "Pages that were read before somebody needed them",
    "pages_waited_total": "Pages that were asked for in time and waited for all the same",
    "pages_unasked_total": "Pages that somebody waited for, as nobody had asked for them before",
    "pages_at_once_total": "Pages that were read where nothing else has to go on, as at a start",
    "pages_held_bytes": "Bytes of pages on disk",
    "pages_file_bytes": "Length of the file of pages, with the gaps between them",
    "pages_disk_bytes": "What that file takes on disk",
}
