"""Format of member logs and histories of clients, read by the letter of docs/MEMBERLOG.md alone."""
