"""Policies: patterns, settings, which one applies, what is in force; Qpid's options of queues."""
