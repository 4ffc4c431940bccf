"""Changes of what the host does: its loader, its waits, its launches."""
