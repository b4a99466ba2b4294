"""Unit tests of `sim`."""
