"""Where the pieces meet: a run, its checkpoints, its recipes."""
