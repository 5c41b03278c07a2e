"""Densities of images and points."""
