"""The run folder: the contract between what records and what reads.

`records` names what is stored, `writing` writes it without ever leaving half a file, `reading` opens it,
also while it is still being written.
"""
