"""The diffusion transformer."""
