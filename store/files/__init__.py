"""Files of a store beside LMDB's: who has a directory, what is durable, space that is kept."""
