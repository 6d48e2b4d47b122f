"""The vision transformer."""
