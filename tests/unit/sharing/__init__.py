"""The shared store: its lease, its files, its generations."""
