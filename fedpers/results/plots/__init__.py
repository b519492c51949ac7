"""Pictures of a run and of several."""
