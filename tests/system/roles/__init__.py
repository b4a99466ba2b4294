"""Each role of each mode with one active broker, under each fault, while messages are confirmed."""
