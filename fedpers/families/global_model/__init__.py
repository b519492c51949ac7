"""One model for everybody, trained in turn by its users."""
