"""How batches come: loaders and copies."""
