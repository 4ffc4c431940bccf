"""Hooks into torch that find steps and phases in an unmodified loop."""
