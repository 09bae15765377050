"""Evaluation of several models by a list of recipes."""
