"""The run folder: what recording writes and all else reads.

`records` defines what is stored, `rank_writer` writes it atomically, `reading` opens it, also during the run.
"""
