"""Measures across ranks."""
