"""A shared store: a lease with a fencing token says which broker leads."""
