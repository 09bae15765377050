"""Comparison of a training run here with the same one on TRL; `make bench-peers` runs it."""
