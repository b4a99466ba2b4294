"""Running seeds: one, many, a gate, a campaign; shrinking what failed."""
