"""Tests of what operators ask of a member."""
