"""A model cut in two: a part that all clients share, and one that stays with each client."""
