"""Changes written into a user's source (`perfkit.source_edits`), as a diff, or as arguments of a Trainer.

A change module says how it is written by its ``EDITS`` (`edits`) and, where a Trainer has an argument for it, by its
``TRAINER`` (`trainers`).
"""
