"""A member with the management API in one process, and what each of its paths demands."""
