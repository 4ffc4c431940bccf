"""Windows: the few steps in which something dear is recorded, and what is done with the result.

`schedules` says which steps, `windows` opens and closes, `kineto` records, `handlers` keep the trace.
"""
