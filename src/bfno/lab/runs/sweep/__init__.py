"""Sweeps: find the settings with the best validation score through many short trainings."""
