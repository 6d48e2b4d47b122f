"""Tasks: what is trained, one file per objective, and the metrics of each."""
