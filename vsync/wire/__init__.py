"""Frames of the ring: as values, and their encoding as bytes."""
