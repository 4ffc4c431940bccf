"""What Python does in the step."""
