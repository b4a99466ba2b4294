"""Publishing: routing, producers, deduplication, delays and dead letters."""
