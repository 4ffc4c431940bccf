"""Measures of the device: busy and idle time, kernels, launches, copies, communication."""
