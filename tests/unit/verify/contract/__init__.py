"""Unit tests of the queue contract."""
