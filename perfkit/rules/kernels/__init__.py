"""Rules on single kernels, from Nsight Compute reports."""
