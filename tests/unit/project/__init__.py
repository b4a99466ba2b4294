"""Unit tests of `project`."""
