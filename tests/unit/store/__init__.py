"""Unit tests of `store`."""
