"""The shell around a member: it wires sockets, ring, store and clock to the pure rooms."""
