"""The management API without sockets."""
