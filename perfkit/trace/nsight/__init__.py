"""Reads what Nsight Systems and Nsight Compute export."""
