"""Where clients connect: sockets, TLS, and what a client may take before it has logged in."""
