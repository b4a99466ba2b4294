"""The machine's time, and the schedule by which queues are checked for expiry."""
