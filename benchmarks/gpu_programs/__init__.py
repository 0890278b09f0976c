"""Programs compiled for a GPU that is not here."""
