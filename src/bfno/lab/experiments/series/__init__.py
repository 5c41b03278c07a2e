"""Classification of irregular series."""
