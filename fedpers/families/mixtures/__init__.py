"""Models mixed by a membership vector on the simplex."""
