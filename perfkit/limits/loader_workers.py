"""What loader workers cost on a CPU, where no worker of the program shows it."""

from __future__ import annotations

#: To hand a batch over from a worker process: of a two-tensor batch, measured between processes on two shared cores.
HANDOVER_NS = 1_300_000
#: By how much a worker slows training that computes on the same processor, through shared caches, memory and often a
#: shared core: with one worker that was busy two thirds of the time, forward and backward took 24 and 33 % longer on
#: two CPUs.
CONTENTION = 0.25
