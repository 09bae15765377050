"""Task items and episodes as data sets of verl."""
