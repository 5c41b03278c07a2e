"""Classification of irregular series: settings, task, evaluation and prediction."""

from bfno.lab.experiments.series.family import SeriesFamily

__all__ = ["SeriesFamily"]
