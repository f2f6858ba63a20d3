"""Comparisons: the grid of data, methods and seeds, where it is run, and the tables made of it."""
