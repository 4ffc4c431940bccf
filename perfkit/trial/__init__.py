"""``perfkit try``: runs a program again with the advice applied, and measures what that changes."""
