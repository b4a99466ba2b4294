"""The bytes of all formats that are on disk or on the network."""
