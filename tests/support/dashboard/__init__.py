"""What the tests of the dashboard need: a browser, an API with prepared answers, rules."""
