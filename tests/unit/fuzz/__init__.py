"""Unit tests of `fuzz`."""
