"""The verbs: thin, each a few lines over the library."""
