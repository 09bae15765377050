"""Learning benchmark: whole runs of a small model with every algorithm and every kind of horizon."""
