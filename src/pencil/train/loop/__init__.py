"""The training loop: the trainer, its checkpoints, evaluations and reports."""
