"""Densities of images and points: settings, task, evaluation and sampling."""

from bfno.train.density.family import DensityFamily

__all__ = ["DensityFamily"]
