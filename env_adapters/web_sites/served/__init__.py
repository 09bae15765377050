"""Modules that run in the sites' own virtual environment: settings, filling, and selection of a session's copy.

Only modules of this folder import Django.
"""
