"""The encoder–decoder."""
