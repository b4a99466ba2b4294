"""What a turn of the ring takes, by kind of turn, in one process and in virtual time."""
