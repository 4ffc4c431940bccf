"""Nsight, driven: nsys and ncu are built a command, started, and what they leave is read.

`tools` finds them, `program` says what they start, `nsys_command` and `ncu_command` say how, `running` does it,
`left` and `window` take up what lies there afterwards, and `answer` has it diagnosed.
"""
