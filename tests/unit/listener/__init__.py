"""Tests of the client ports."""
