"""Windows: the few steps in which something dear is recorded, and what is done with the result.

`schedules` says which steps and `step_plan` what else a step may be, `windows` opens and closes; `kineto` (with
`torch_profiler`, `trace_files` and `stacks`), `cuda_profiler`, `memory` and `spans` record; `models` puts ranges
around the modules of what is trained, `extras` are steps of their own, `handlers` keep the trace.
"""
