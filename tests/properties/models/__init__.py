"""Plain models that the real code is compared with."""
