"""Runs a program again with the advice applied, and measures what that changes: ``perfkit try``.

Each rerun is a process of its own that stops after some steps and works in a temporary folder; it is ended where it
would write anywhere else, connect to a database or ask for input, and no process of it remains.

First the unchanged program runs against itself: what two equal programs differ by on this machine is the least that is
reported as a saving. Then each change that answers a finding runs against the unchanged program: switched off and on
inside one process, in blocks of steps in random order, where it can be; else two processes in turns, each stopped
while the other runs. Two processes of one program can differ persistently, by how the system gives out memory, so a
saving between processes is claimed once a second pair has shown it too. What is undecided is measured again, three
times at most. What costs most is tried first; a change that builds on others follows them, and one whose first steps
take long, as compiling does, comes last and leaves the time to combine the others. The changes that save time are then
combined, each is left out once, and the combination is measured in processes of its own.

A saving is the Hodges-Lehmann shift of paired blocks, as a share of the step, with a 95 % interval by bootstrap;
compiling and autotuning are left out of it and reported as the steps after which they pay. Losses are compared step by
step: to 1e-6 for a change that computes the same numbers, else with what other seeds make of them. This says nothing
about convergence.

``--sweep batch-size`` measures a process per size and fits memory as a + b * batch; ``--sweep workers`` does so for the
number of loader workers.
"""
