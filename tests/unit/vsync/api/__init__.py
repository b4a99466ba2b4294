"""Unit tests of `vsync/api`."""
