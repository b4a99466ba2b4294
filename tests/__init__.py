"""Tests of the four packages, and what they share."""
