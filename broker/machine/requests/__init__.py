"""Clients' arguments and headers: their meaning, validation and refusals."""
