"""A store's files beside LMDB's: the directory lock, durable files, and reserved space."""
