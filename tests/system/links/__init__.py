"""Links between clusters."""
