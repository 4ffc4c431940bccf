"""The clock of a training loop: when a step begins and ends, and what its time went to.

`clock` keeps the times, `hooks` feeds it from torch without an edit to the loop, `iteration` is the
explicit form, `sampler` and `line_tracer` find the lines behind the phases.
"""
