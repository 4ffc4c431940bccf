"""Measures of Nsight Compute reports."""
