"""Client ports: sockets, TLS, and limits for clients that have not logged in yet."""
