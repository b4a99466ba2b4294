"""Unit tests of what is compared and checked without Spark."""
