"""Process groups on the ring, after corosync's CPG.  No I/O."""
