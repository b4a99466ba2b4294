"""The replicated machine: commands in, effects out, nothing else."""
