"""The Totem single-ring protocol, without I/O."""
