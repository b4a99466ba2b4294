"""The check beside a running cluster: following logs, saved checkpoints, alerts."""
