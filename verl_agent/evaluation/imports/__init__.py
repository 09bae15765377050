"""Trajectories that other programs recorded, as episode records."""
