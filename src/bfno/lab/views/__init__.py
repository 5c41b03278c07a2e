"""Tables, curves, figures and pages from records."""
