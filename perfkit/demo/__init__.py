"""The training scripts of `perfkit demo`: package data, copied into a run folder and run from there."""
