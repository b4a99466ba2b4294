"""Unit tests of `durability`."""
