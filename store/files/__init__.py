"""Files of a store beside LMDB's pages: who has a directory, what is durable, space that is kept."""
