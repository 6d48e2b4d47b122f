"""What the heads of a trained model attend to: the inputs, the scores of their patterns, and how they are shown."""
