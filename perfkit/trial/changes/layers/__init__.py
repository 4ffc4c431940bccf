"""What the layers of a model compute."""
