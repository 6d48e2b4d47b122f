"""The explorer: a model opened in a browser, its answer first, and every number one click away."""
