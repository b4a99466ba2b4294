"""Totem-like total order multicast with extended virtual synchrony; usable by itself."""
