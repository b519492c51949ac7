"""What one client computes alone: a model, its loss, its gradient, local training."""
