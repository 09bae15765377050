"""Viewer of runs: index of the records, queries, pages and exports."""
