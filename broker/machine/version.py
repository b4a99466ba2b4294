"""What members must have in common to compute the same: the version of the machine in force.

Each release executes a range of versions. The one in force is replicated state: a new cluster gets
the newest that all its first members execute, and an `Upgrade` command raises it, ordered when all
members of the view execute the new one. Until then a member may go back to the older release; from
then on an older release is refused at the door, with a sentence.

Raise MACHINE_VERSION with every change of a command's shape, an outcome, an order, a hash or the
snapshot, and let the code do the new thing only where `state.version` has reached it. Raise
MACHINE_VERSION_MIN when code for older versions is deleted.
Decision: docs/decisions/0029-new-behaviour-is-switched-on-by-a-command.md.
"""

MACHINE_VERSION = 15
MACHINE_VERSION_MIN = 9

ANSWERS_AS_RABBITMQ = 10
"""From this version on: unbinding at ends that are not there succeeds; arguments that nobody knows
are taken, and not compared; an exclusive queue that is declared otherwise is locked; the headers CC
and BCC name further routing keys; what may live for no time is delivered at once or dead; queues
that share the credit of a channel take turns. Decision:
docs/decisions/0048-arguments-that-nobody-knows-are-taken.md."""

NUMBERED_PUBLISHES = 11
"""From this version on: what a producer numbers by headers is taken once, however often it is sent.
Decision: docs/decisions/0052-a-number-is-taken-once.md."""

BODIES_IN_PARTS = 12
"""From this version on: the body of a large message comes in parts ahead of it. Decision:
docs/decisions/0056-large-bodies-are-ordered-in-parts.md."""

EXCHANGES_THAT_CHOOSE = 12
"""From this version on: exchanges that choose one of their bindings by a hash, or at random."""

CONSUMER_TIMEOUTS = 13
"""From this version on: queues and policies say how long a delivery may be held
(broker/timers/consumer_timeouts.py)."""

TICKS_NAME_POSITIONS = 13
"""From this version on: a tick names the position it was read at. Decision:
docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md."""

SHOVELS = 14
"""From this version on every member runs shovels. Decision:
docs/decisions/0068-a-shovel-is-a-process-that-one-member-runs.md."""

ACTIVE_MEMBER = 14
"""From this version on: at most one member has the role of the active one, which only a member
itself takes (`Promote`). Decision: docs/decisions/0066-the-active-member-is-ordered.md."""

DELAYED_MESSAGES = 14
"""From this version on: exchanges that hold messages back until their delay is over. Decision:
docs/decisions/0064-a-delayed-message-waits-in-a-queue-of-its-exchange.md."""

DEDUPLICATION = 14
"""From this version on: queues that take no message twice whose key is in their window. Decision:
docs/decisions/0065-a-repeat-is-known-by-its-key-in-a-window-of-the-queue.md."""

DUE_TAKE_TURNS = 14
"""From this version on: at one tick no queue of which much is due keeps the others from theirs."""

BOUNDED_WINDOWS = 15
"""From this version on: the windows of all queues that deduplicate have a bound together, and a
purge empties one. Decision:
docs/decisions/0065-a-repeat-is-known-by-its-key-in-a-window-of-the-queue.md."""

ITEMS_BY_XXH3 = 15
"""From this version on: blobs say by their format that the chains have their XXH3. Decision:
docs/decisions/0143-items-and-frames-are-hashed-by-xxh3.md."""

QPID_OPTIONS = 15
"""From this version on: queues may be declared with the options of Qpid's C++ broker
(policies/qpid_options.py)."""

FEDERATION = 15
"""From this version on: policies name upstreams, every member runs federation links, and there are
exchanges for those of other clusters. Decision:
docs/decisions/0076-a-federation-link-is-a-shovel-that-follows-bindings.md."""

STREAMS = 15
"""From this version on: queues that are read without being consumed. Decision:
docs/decisions/0079-a-stream-is-read-at-offsets.md."""

KEPT_LETTERS = 15
"""From this version on: queues that keep the dead letters that cannot go. Decision:
docs/decisions/0081-a-dead-letter-that-cannot-go-waits-in-a-queue.md."""

FAILOVER_EXCHANGE = 15
"""From this version on: each virtual host has the exchange `amq.failover`, by which clients hear of
the members."""

PAGES_AS_THEY_ARE = 15
"""From this version on a checkpoint has what waits on disk as it lies there. Decision:
docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md."""

LAST_VALUES = 15
"""From this version on: queues that keep the newest message of each key. Decision:
docs/decisions/0084-a-last-value-is-replaced-at-the-end.md."""

MESSAGE_GROUPS = 15
"""From this version on: queues whose messages have groups. Decision:
docs/decisions/0087-a-group-has-one-holder.md."""

QUEUE_REPLICAS = 15
"""From this version on every member keeps queues the same as ones of brokers that are not in the
cluster. Decision: docs/decisions/0096-a-replica-holds-what-its-source-holds.md."""

BROWSING = 15
"""From this version on: consumers that look at what waits in a queue and take nothing. Decision:
docs/decisions/0085-a-browser-is-a-reader.md."""

QUORUM_QUEUES_COUNT = 15
"""From this version on: deliveries of queues with a delivery limit say with 0, too, how often the
message came back, and queues of the type quorum count without a limit, as RabbitMQ's."""

MOVES_TELL_WHY = 15
"""From this version on moves say what they rest on: times, limits, groups, bindings. Decision:
docs/decisions/0099-moves-tell-what-they-rest-on.md."""

DECLARED_AS_RABBITMQ = 15
"""From this version on queues of the type quorum are durable and of nobody, and have none of the
arguments that RabbitMQ refuses for them; hints are values that RabbitMQ takes; a virtual host may
say which type its queues have that are declared without one."""

DEATHS_NAME_COPIES = 15
"""From this version on the keys in x-death are all that the message was published with, those of CC
too, as RabbitMQ's."""
