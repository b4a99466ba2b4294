"""Unit tests of `options`."""
