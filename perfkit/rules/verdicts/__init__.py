"""Rules that run where no problem was found (why the step is healthy, or unknown) or the recording is incomplete."""
