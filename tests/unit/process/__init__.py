"""Unit tests of `process`."""
