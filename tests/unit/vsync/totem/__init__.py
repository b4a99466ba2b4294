"""Unit tests of `vsync/totem`."""
