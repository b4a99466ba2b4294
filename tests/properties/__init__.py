"""Tests with generated inputs, and short runs of the simulator."""
