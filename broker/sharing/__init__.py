"""A store that several brokers share: a lease with a fencing token says which of them leads."""
