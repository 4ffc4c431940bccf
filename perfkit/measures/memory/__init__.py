"""Measures of memory."""
