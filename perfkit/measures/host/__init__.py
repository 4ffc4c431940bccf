"""Measures of the host: source lines, API calls, ranges, syncs."""
