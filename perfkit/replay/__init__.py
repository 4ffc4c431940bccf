"""What-if: the step replayed from a trace's dependency graph, as it is and with a problem taken out.

`task_graph` makes tasks and their dependencies of a trace's columns, `replaying` runs them, `transforms` change them,
`what_if` answers. On an asynchronous device a problem's own time is not what removing it saves: a replay shows which
task the step waits for next.
"""
