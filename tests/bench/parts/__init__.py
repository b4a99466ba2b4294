"""What some parts of a broker cost in one process, without network and threads."""
