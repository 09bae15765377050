"""Exports of episodes: one HTML file, Inspect's log, Parquet, records, and a view for notebooks."""
