"""Unit tests of `watchdogs`."""
