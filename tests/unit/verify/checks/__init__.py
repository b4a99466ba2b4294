"""Unit tests of the comparisons and checks that run without Spark."""
