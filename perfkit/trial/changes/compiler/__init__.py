"""What torch.compile makes of the models."""
