"""What an experiment is: its settings, data, model and task."""
