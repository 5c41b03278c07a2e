"""Sweeps: which settings are best by their validation score, from many short trainings."""
