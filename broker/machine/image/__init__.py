"""The whole state as records: snapshot, restore, scrubbing, invariants."""
