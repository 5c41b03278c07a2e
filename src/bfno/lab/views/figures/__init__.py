"""Figures from runs, in one style."""
