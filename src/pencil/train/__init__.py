"""Training: one loop for every family, through the Task protocol."""
