"""Decoders against what nobody should send: `python -m tests.fuzz.frames --help`."""
