"""A run: its folder, its files, and the manifest that lists them."""
