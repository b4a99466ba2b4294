"""Decoders against input that no peer should send: `python -m tests.fuzz.frames --help`."""
