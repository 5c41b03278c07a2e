"""Estimators with the interface of scikit-learn, trained by the program's own loop."""
