"""The cost of some parts of a broker in one process, without network and threads."""
