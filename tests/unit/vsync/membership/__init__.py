"""Unit tests of `vsync/membership`."""
