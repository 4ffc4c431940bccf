"""Traces written after the ledger stood, by which no number is chosen: see trace_suite.py on how to add one."""
