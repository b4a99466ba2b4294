"""The check of a running cluster: following logs, saved checkpoints, alerts."""
