"""The bytes of all disk and network formats."""
