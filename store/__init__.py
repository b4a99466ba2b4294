"""One member's durable state: an LMDB store with markers, checkpoints and a batch log."""
