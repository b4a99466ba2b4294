"""Frames of the ring: values, and bytes both ways."""
