"""Windows: the few steps in which something dear is recorded, and what is done with the result.

`schedules` says which steps, `windows` opens and closes, `kineto` records, `models` puts
ranges around the modules of what is trained, `handlers` keep the trace.
"""
