"""Unit tests of `machine`."""
