"""What methods of one kind share and nobody else."""
