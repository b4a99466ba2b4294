"""The machine's time, and when queues are looked at."""
