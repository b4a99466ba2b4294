"""Unit tests of `tools`."""
