"""Checks of what clients were told against what members logged."""
