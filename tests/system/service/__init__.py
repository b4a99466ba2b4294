"""A broker as a service of its machine."""
