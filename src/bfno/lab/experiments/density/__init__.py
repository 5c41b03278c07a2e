"""Densities of images and points: settings, task, evaluation and sampling."""

from bfno.lab.experiments.density.family import DensityFamily

__all__ = ["DensityFamily"]
