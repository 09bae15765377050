"""Oversight of actions by rules, people and programs, and control of a running command by a person."""
