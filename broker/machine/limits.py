"""Limits on the cost of one command, which keep the work at one position short.

All members must decide alike, so these are part of the machine, not options: changing one means
raising `version.MACHINE_VERSION`. A unit is about two microseconds of a quiet core: a message
entering a queue, a binding followed. A command that would exceed its bound is refused before
anything changes, or done in slices at the following positions. docs/GUARANTEES.md (G15) has the
table.
"""

FANOUT_MAX = 10_000
"""Queues that one publish may reach."""
ROUTE_WORK_MAX = 40_000
"""Units spent finding them: bindings followed, headers and words compared, in all exchanges."""
KEY_WORK = 3
"""Units for each key that CC and BCC add, to read it and look it up."""
COMMIT_WORK_MAX = 20_000
"""Units of one tx.commit, which is atomic at one position: publishes, messages that enter queues,
routes, settled deliveries."""
FOUND_AGAIN_PER_WORK = 4
"""Units spent finding a route that count as one of these, for each further publish of a commit
whose route cannot be remembered: following a binding costs a quarter of a message that enters."""
UNFINISHED_BYTES_MAX = 1 << 30
"""Bytes of bodies that come in parts and are not whole yet, of all clients together. Beyond this,
the channel that has waited longest for its next part is closed."""
EXCHANGE_BINDINGS_MAX = 20_000
"""Bindings from one exchange."""
DESTINATION_BINDINGS_MAX = 10_000
"""Bindings to one queue, or from other exchanges to one exchange."""
QUEUE_CONSUMERS_MAX = 10_000
CHANNEL_CONSUMERS_MAX = 1_024
CHANNEL_HELD_MAX = 4_096
"""Unsettled deliveries to the consumers of one channel; a larger prefetch, or none, means this.
basic.get may hold as many again, and so may deliveries without acknowledgement."""
CONSUMER_HELD_MAX = 2_000
"""Deliveries to one consumer without its own prefetch: those in flight are held in memory."""
NO_ACK_HELD_MAX = 1_000
"""Deliveries to one consumer without acknowledgement that its member has not written yet."""
LETTERS_WORK_MAX = 5_000
"""Units of dead-lettering at one position; the other letters follow at the next ones."""
LETTERS_RETRY_US = 1_000_000
"""The machine's time after which a dead letter that could not go is tried again. At one tick no
more than LETTERS_WORK_MAX of all of them are tried."""
ENDING_WORK_MAX = 5_000
"""Units of ending connections at one position: those of a member that is gone, and a closed one
that takes longer. The rest follows at the next positions."""
DEFINITIONS_MAX = 20_000
"""Users, permissions, policies and all other operator definitions, together."""
DEFINITION_BYTES_MAX = 64 * 1024
"""Bytes of one definition."""
LEAVING_WORK_MAX = 5_000
"""Units of deleting the queues and exchanges of deleted virtual hosts at one position; the others
follow at the next ones."""
EXPIRED_PER_TICK_MAX = 2_048
"""Messages that expire, and queues looked at, at one tick; the next tick continues."""
EXPIRED_PER_QUEUE_MAX = EXPIRED_PER_TICK_MAX // 4
"""The share of one queue before other due queues have their turn."""
EXPIRED_WORK = 2
"""The units that one of these counts as where due messages are published."""
LEASES_WORK_MAX = 5_000
"""Units of deleting unused queues at one tick; the next tick continues."""
EXPIRED_AT_ONCE_MAX = 1_024
"""Expired messages dropped at one position because a consumer's or a client's turn has come, and
messages that consumers then get; for consumers the next position continues."""
TRIMMED_MAX = 1_024
"""Messages dropped at one position because a queue is over its limit; the next one continues."""
TRIMMED_PER_MESSAGE_MAX = 2
"""Of these, messages dropped as each message comes in or back, which may be many at one position,
in many queues."""
READS_MAX = 1_024
"""Messages sent to readers of streams at one position, plus readers looked at for that; the next
position continues."""
READS_PER_TURN = 32
"""Of these, messages sent before the next reader has its turn."""
PASSED_PER_READ = 2_048
"""How many messages a reader's filter may skip, for one value, at the cost of one read."""
FILTER_VALUES_MAX = 32
"""Filter values of one reader of a stream."""
STREAM_TIMES_MAX = 4_096
"""Times that a stream remembers, each with the offset of the first message then."""
PRODUCERS_MAX = 1_000
"""Remembered producers that number their messages, of one user in one virtual host: those heard of
most recently."""
NUMBERS_MAX = 4_096
"""Remembered numbers of each producer, up to the highest: this many of its messages may be
unconfirmed. 32 KiB each, or briefly twice that."""
WINDOW_KEYS_MAX = 100_000
"""Keys that a queue that deduplicates remembers, as set by `x-cache-size`."""
WINDOW_KEYS_DEFAULT = 10_000
WINDOW_KEYS_TOTAL_MAX = 1_000_000
"""Keys that all queues of the cluster together may remember, by their declared sizes."""
WINDOW_KEYS_WORK = 5_000
"""Keys forgotten at one tick because their time is over; the next tick continues."""
POLICIES_MAX = 200
"""Policies of one virtual host, and as many operator policies. A queue that is declared is compared
with all of them at its position."""
POLICIES_WORK_MAX = 5_000
"""Units of finding the policies of queues after a change; the next position continues."""

QUEUE_WORK = 12
BINDING_WORK = 3
CONSUMER_WORK = 4
HELD_WORK = 3
POLICY_WORK = 2
"""Units of deleting a queue, a binding or a consumer, of putting back a held message, and of
comparing a name with the pattern of a policy."""
WORDS_PER_UNIT = 16
"""Words of topic patterns, or bytes of headers, looked at per unit."""
BODY_PER_UNIT = 2_048
"""Bytes of a body hashed per unit."""
