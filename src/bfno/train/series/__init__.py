"""Classification of irregular series: settings, task, evaluation and prediction."""

from bfno.train.series.family import SeriesFamily

__all__ = ["SeriesFamily"]
