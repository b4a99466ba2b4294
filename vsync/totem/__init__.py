"""The Totem single-ring protocol, sans-I/O."""
