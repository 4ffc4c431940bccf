"""The version of the run folder's layout."""

#: 1: the first. 2: a `Location` for each place in source, `Step.kind` for flags. `perfkit.run.older_folders` converts
#: older records; a reader refuses newer ones.
SCHEMA = 2
