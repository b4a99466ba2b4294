"""The report of a check: result, timeline, HTML page, and the progress bar."""
