"""Unit tests of `vsync/wire`."""
