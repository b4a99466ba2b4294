"""Unit tests of `vsync/io`."""
