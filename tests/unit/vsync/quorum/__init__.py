"""Unit tests of `vsync/quorum`."""
