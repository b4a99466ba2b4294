"""Publishing: routes, numbers, copies, dead letters, large bodies, runs of publishes and acks."""
