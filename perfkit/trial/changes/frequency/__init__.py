"""How often the loop does something beside training."""
