"""What the loop and the loader's workers do, by sampling and by tracing: per source line, per module, per operation."""
