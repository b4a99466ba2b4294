"""Real processes for system tests: clusters, relays, load, namespaces."""
