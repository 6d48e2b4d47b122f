"""Published worked examples checked: their numbers, and what they claim."""
