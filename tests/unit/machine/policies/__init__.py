"""Policies: what may be said, which applies, what follows; and Qpid's options of queues."""
