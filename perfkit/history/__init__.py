"""Runs of one workload over time: their steps, where these changed and by which commit, and objectives for CI.

recorded_runs   finds the run folders below a folder, and what each says of itself
workloads       which of them are the same program on the same kind of machine
run_summaries   the numbers of a run, from a bounded part of its files
change_points   where the median step changes, and how much runs vary
objectives      what the newest run must hold
gathering       all of it: `read_history`
results         what comes out, as data
"""
