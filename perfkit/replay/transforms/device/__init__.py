"""Changes of what devices do: copies and collectives."""
