"""Training of the probe that tells whether the passages before a question hold its answer (`everlong train-probe`)."""
