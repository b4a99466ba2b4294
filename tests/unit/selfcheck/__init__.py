"""Unit tests of `selfcheck`."""
