"""Everything in vsync that uses sockets, the event loop or files."""
