"""Hooks into torch that find steps and phases in a loop nobody edited."""
