"""What a device or this machine could do: the limits against which a step is judged."""
