"""Unit tests of `verify`."""
