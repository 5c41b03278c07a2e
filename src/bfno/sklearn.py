"""Estimators with scikit-learn's interface: `fit`, `predict`, `score`, pipelines, searches.

They need what training needs, `pip install 'bfno[train]'`. `bfno.sklearn.ImageClassifier` takes
arrays and trains a model; `bfno.ImageClassifier` is the model itself, a torch module.
"""

from __future__ import annotations

from bfno.program import installed

with installed("bfno.sklearn"):
    from bfno.lab.estimators.density import DensityEstimator
    from bfno.lab.estimators.images import ImageClassifier
    from bfno.lab.estimators.series import SeriesClassifier

__all__ = ["DensityEstimator", "ImageClassifier", "SeriesClassifier"]
