"""What runs inside the sites' own virtual environment: settings, seeding, and the choice of a session's copy.

Only modules of this folder import Django; only `world` is imported from outside it.
"""
