"""Runner of studies in one process: a small transformer that reads words, in place of verl's workers and engine."""
