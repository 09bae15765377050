"""Shared YAML of all recipes, and the typed sections that they add to verl's."""
