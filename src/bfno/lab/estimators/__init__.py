"""Estimators with scikit-learn's interface, trained by the program's own loop."""
