"""Models that judge: a rubric, the prompt of a judge, and its verdict."""
