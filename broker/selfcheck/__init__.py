"""Scrubbing and re-execution beside a running member."""
