"""Unit tests of `replication`."""
