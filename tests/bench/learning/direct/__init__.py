"""Learning benchmark in one process: a tiny transformer, verl's estimators and losses, no Ray and no engine."""
