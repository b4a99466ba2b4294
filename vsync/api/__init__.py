"""The face of the library: `Cluster` and `Group`."""
