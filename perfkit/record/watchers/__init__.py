"""What is read between steps: memory, compilations, garbage collections, settings, tensors, the node."""
