"""The only sockets, event loop and files of vsync."""
