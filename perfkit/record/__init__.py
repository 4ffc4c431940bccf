"""Recording a training loop: its step clock, what listens to it, and the windows in which more is recorded."""
