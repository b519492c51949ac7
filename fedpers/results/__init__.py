"""What a run leaves behind: run directory, checkpoints, pictures, reports."""
