"""Unit tests of `vsync/primary`."""
