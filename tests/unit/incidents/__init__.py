"""Unit tests of `incidents`."""
