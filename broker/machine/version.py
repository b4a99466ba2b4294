"""The machine version in force, which all members must share to compute the same.

Each release executes a range of versions. The one in force is replicated state: a new cluster gets
the newest that all its first members execute. An `Upgrade` command raises it; it is ordered when
all members of the view execute the new version. Until then a member may go back to the older
release; from then on an older release is refused at the door, with a sentence.

Raise MACHINE_VERSION with every change of a command's shape, an outcome, an order, a hash or the
snapshot. Name the new version here by what it brings (`STREAMS = 2`), and let the code behave in
the new way only where `state.version` has reached it. Raise MACHINE_VERSION_MIN when code for older
versions is deleted.
Decision: docs/decisions/0029-new-behaviour-is-switched-on-by-a-command.md.
"""

MACHINE_VERSION = 1
MACHINE_VERSION_MIN = 1
