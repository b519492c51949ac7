"""Clients that learn from each other, and the weights by which they do."""
