"""Training data: images, texts, and pairs of texts, from files, folders, the hub, or embedded in the package."""
