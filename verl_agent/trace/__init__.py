"""Records, metrics, progress, plots and provenance of runs; independent of tokens and of verl."""
