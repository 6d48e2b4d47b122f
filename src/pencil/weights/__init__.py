"""Other people's checkpoints to ours and back: names and layouts, nothing else."""
