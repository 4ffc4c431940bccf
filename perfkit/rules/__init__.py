"""Rules: one problem per file, measures in, findings out.

A rule is a module in one of these folders with

- an ``ID``, which is its file's name with hyphens,
- a docstring, which `perfkit explain ID` prints: problem, how it shows, causes, fix, saving, source,
- ``check``, whose parameters are the measures that it asks for (see `perfkit.rules._engine`) and which yields a
  `Finding` for each problem found, usually made by ``StepBudget.finding``,
- and, where its findings are consequences of others, ``FOLLOWS``: the ids of those rules, nearest first
  (``FOLLOWS_AT_LINE``, ``FOLLOWS_IN_FUNCTION``: only where both findings are in one line, or one function).

A rule imports no other rule. Nothing lists the rules: a file in a family's folder is found. The rules of ``verdicts``
run only where no problem could be quantified.
"""
