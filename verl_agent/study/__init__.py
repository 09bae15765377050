"""Studies: a question, its arms and seeds in a file, the runs that answer it, and the report."""
