"""Which lines, modules and operations take the time: sampled over the run, or counted in one step."""
