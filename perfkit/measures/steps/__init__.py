"""Measures of steps: phases, throughput, batches."""
