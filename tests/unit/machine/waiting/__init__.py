"""Waiting messages: paging, streams, browsers, groups and last values."""
