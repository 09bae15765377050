"""Does each algorithm learn, and what does a growing horizon do: whole runs of a small model on two cores."""
