"""Rules on torch.compile."""
