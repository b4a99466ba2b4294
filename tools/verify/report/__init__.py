"""The result of a check: report, timeline, HTML page; and the progress bar."""
