"""Measures of ops: their cost, and patterns of ops that have a faster form."""
