"""Changes written into a user's source, as a diff, or as arguments of a Trainer.

Own code, not libcst: positions come from `ast`, the text outside of an edit is never touched, and every edited file is
parsed again and compared with the tree that was meant (`source`). A change module says how it is written by its
``EDITS`` (`edits`) and, where a Trainer has an argument for it, by its ``TRAINER`` (`trainers`).
"""
