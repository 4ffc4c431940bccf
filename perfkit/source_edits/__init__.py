"""Edits of a user's Python file, as text that leaves all else as it stands.

Own code, not libcst: positions come from `ast`, the text outside of an edit is never touched, and every edited file is
parsed again and compared with the tree that was meant (`source`). Nothing is written to disk.
"""
