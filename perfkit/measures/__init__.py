"""Measures: one question per file, from a trace or a run's rows to frozen numbers (`results`).

`perfkit.measures.gathering.measure` takes all of them from a run folder or a trace file. Importing `results` alone
loads no numpy, so that rules and reports, and with them `perfkit run`, do not load it before the program does.
"""
