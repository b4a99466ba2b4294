"""Unit tests of what people are shown."""
