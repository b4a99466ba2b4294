"""Support of the dashboard's tests: a browser, an API with prepared replies, rules."""
