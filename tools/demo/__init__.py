"""Three brokers, real input, one killed in mid-stream, everything checked."""
