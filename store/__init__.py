"""The durable state of one member on LMDB: meta record with marker, checkpoint, log of entries."""
