"""The changes that perfkit applies to a program without an edit to it: one module each, in the folder of its family.

A module defines what `perfkit.trial.catalog.Change` holds: ``ID``, its docstring, and

- ``ANSWERS``: ids of the rules whose advice it is;
- ``KIND``: "exact" where no number is computed in another way, "numeric" where results differ by rounding, "sweep"
  where the training is another one, "bound" where results are wrong and only the most that could be saved is
  measured, "computed" where nothing is run (then there is no ``apply``);
- ``LINES``: what a user would write, with ``{value}`` for the value;
- ``parse(text)``: the value after ``=``, or its default where there is none (raises ``ValueError``); a change without
  ``parse`` has no value;
- ``PLACEHOLDER``: what stands for the value in a list of changes (optional, "N");
- ``suggested()``: the values that are tried where none is given;
- ``refuse()``: why it cannot be applied in this process, or None (optional);
- ``TOGGLE = True`` where it can be switched off and on between any two steps, and the program is then really without it
  (optional): wrappers that do nothing unless ``site.active``, and what ``site.switch`` calls each time;
- ``EDITS``: how it is written into the program's source (`perfkit.trial.patches.edits`); without, a person writes it;
- ``TRAINER``: the argument that Trainers have for it (`perfkit.trial.patches.edits.TrainerArgument`; optional);
- ``environment(current)``: the variables to set before the program starts (optional);
- ``remaining(value)``: the share of the cost that remains, of a change that is computed;
- ``needless(rank, value)``: why trying it is needless in the program of this recorded run, or None (optional);
- ``AFTER``: ids of changes that it builds on: it is tried where the best of those is applied (optional);
- ``REDRAWS = True`` where random numbers are drawn in other processes, and so are others: the losses are then compared
  with those of other seeds (optional);
- ``FIRST = True`` where other changes build on what this one has changed (optional);
- ``SLOW_START = True`` where its first steps take as long as whole reruns of others: it is tried last (optional);
- ``apply(site, value)``: puts it in place through ``site.patches``, which undo it, and calls ``site.used()`` each time
  that it changes something of the program's, so that a change without effect is reported as that.

A change takes effect where the program makes a loader, an optimizer or a module: apply it before.
"""
