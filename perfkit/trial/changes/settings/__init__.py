"""Settings of torch and of the interpreter."""
