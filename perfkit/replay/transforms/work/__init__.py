"""Changes of ops, kernels, ranges and modules that a pattern names."""
