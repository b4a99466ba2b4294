"""The cost of a turn of the ring, by kind of turn, in one process and in virtual time."""
