"""What one command may cost: the bounds by which the work at one position stays short.

All members must decide alike, so these are part of the machine, not options: who changes one raises
`version.MACHINE_VERSION`. A unit is about two microseconds of a quiet core: a message that enters a
queue, a binding that is followed. What costs more than its bound is refused before anything
changes, or is done in slices at the positions that follow. docs/GUARANTEES.md (G15) has the table.
"""

FANOUT_MAX = 10_000
"""Queues that one publish may reach."""
ROUTE_WORK_MAX = 40_000
"""Units spent to find them: bindings followed, headers and words compared, in all exchanges."""
KEY_WORK = 3
"""Of these for each key that CC and BCC add, to read and to look for it."""
COMMIT_WORK_MAX = 20_000
"""Units of one tx.commit, which is atomic at one position: publishes, messages that enter queues,
routes, settled deliveries."""
UNFINISHED_BYTES_MAX = 1 << 30
"""Of bodies that have begun to come in parts and are not whole yet, of all clients together. When
there is more, the channel that has waited longest for its next part is closed."""
EXCHANGE_BINDINGS_MAX = 20_000
"""From one exchange."""
DESTINATION_BINDINGS_MAX = 10_000
"""To one queue, or from other exchanges to one exchange."""
QUEUE_CONSUMERS_MAX = 10_000
CHANNEL_CONSUMERS_MAX = 1_000
CHANNEL_HELD_MAX = 4_096
"""Deliveries to the consumers of one channel that are not settled; a prefetch above it, or none,
stands for it. As many again may be held by basic.get, and in deliveries without acknowledgement."""
CONSUMER_HELD_MAX = 2_000
"""Of one consumer without a prefetch of its own: what is in flight is held in memory."""
NO_ACK_HELD_MAX = 1_000
"""Of one consumer without acknowledgement, until its member has written them."""
LETTERS_WORK_MAX = 5_000
"""Units of dead-lettering at one position; the other letters follow at the next ones."""
LETTERS_RETRY_US = 1_000_000
"""The machine's time after which a dead letter that could not go is looked at again. No more of all
of them at one tick than LETTERS_WORK_MAX."""
ENDING_WORK_MAX = 5_000
"""Units of ending connections, at one position: those of a member that is gone, and one that was
closed and takes more. The rest follows at the next positions."""
DEFINITIONS_MAX = 20_000
"""Users, permissions, policies and what else operators define, together."""
DEFINITION_BYTES_MAX = 64 * 1024
"""Of one of them."""
LEAVING_WORK_MAX = 5_000
"""Units of deleting the queues and exchanges of virtual hosts that were deleted, at one position;
the others follow at the next ones."""
EXPIRED_PER_TICK_MAX = 2_048
"""Messages that expire at one tick, and queues that are looked at; the next one goes on."""
EXPIRED_PER_QUEUE_MAX = EXPIRED_PER_TICK_MAX // 4
"""The share of one queue before others that are due have their turn."""
EXPIRED_WORK = 2
"""Units for which one of these stands, where others are published as they are due."""
LEASES_WORK_MAX = 5_000
"""Units of deleting unused queues at one tick; the next one goes on."""
EXPIRED_AT_ONCE_MAX = 256
"""Messages that are dropped because they have expired where something else is done with a queue."""
TRIMMED_MAX = 1_024
"""Messages that are dropped at one position because a queue holds more than it may; the next one
goes on."""
TRIMMED_PER_MESSAGE_MAX = 2
"""Of these as each message comes in or back, which may be many at one position, in many queues."""
READS_MAX = 1_024
"""Messages that readers of streams are sent at one position, and readers that are looked at for it;
the next one goes on."""
READS_PER_TURN = 32
"""Of these before the next reader has its turn."""
PASSED_PER_READ = 2_048
"""So many messages that a reader's filter passes over, for one value, cost as much as one read."""
FILTER_VALUES_MAX = 32
"""Of one reader of a stream."""
STREAM_TIMES_MAX = 4_096
"""Times that a stream remembers, each with the offset that came then."""
PRODUCERS_MAX = 1_000
"""Producers that number their messages, of one user in one virtual host, that are remembered: those
that were heard of last."""
NUMBERS_MAX = 4_096
"""Numbers of each producer that are remembered, up to the highest: so many of its messages may be
unconfirmed. 32 KiB each, or twice that for a moment."""
WINDOW_KEYS_MAX = 100_000
"""Keys that a queue that deduplicates remembers, as `x-cache-size` says."""
WINDOW_KEYS_DEFAULT = 10_000
WINDOW_KEYS_TOTAL_MAX = 1_000_000
"""Keys that all queues of the cluster may remember together, by what each was declared with."""
WINDOW_KEYS_WORK = 5_000
"""Keys that are forgotten at one tick because their time is over; the next one goes on."""
POLICIES_MAX = 200
"""Policies of one virtual host, and as many of the operator. A queue that is declared is compared
with all of them at its position."""
POLICIES_WORK_MAX = 5_000
"""Units of looking which policies apply to the queues after a change; the next position goes on."""

QUEUE_WORK = 12
BINDING_WORK = 3
CONSUMER_WORK = 4
HELD_WORK = 3
POLICY_WORK = 2
"""Units to delete a queue, a binding, a consumer, to put back a message that was held, and to
compare a name with the pattern of a policy."""
WORDS_PER_UNIT = 16
"""Words of topic patterns, or bytes of headers, that are looked at for one unit."""
BODY_PER_UNIT = 2_048
"""Bytes of a body that are hashed for one unit."""
