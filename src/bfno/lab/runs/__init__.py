"""From settings to a trained model."""
