"""The roles of members where not all take clients, and the rules by which members get them.

| question | answered by |
| --- | --- |
| which mode is this, by the options that were given? | `BrokerOptions.mode` |
| which objects make the mode at a member? | `choice` |
| which roles are there, and which follows which? | `role_table` |
| has this member the role, does it take it or give it up? | `active_passive` |
| whose turn is it, and what are clients told, in an active-passive cluster? | `by_ring` |
| the same in a pair (HAC, master/slave)? | `by_pair` |
| which standing follows which in a pair, by its peer and its clients? | `pair_table` |
| may one of a pair that lost the other one make a primary view alone? | `vsync.primary.component` |
| which of the brokers of a shared store leads? | `broker.sharing.lease`, before there is a member |
"""
