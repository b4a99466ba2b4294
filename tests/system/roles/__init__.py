"""Each role of each mode with one active broker, and each fault, while messages are confirmed."""
