"""What the heads of a trained model look at: the texts, the scores of their patterns, and how they are told."""
