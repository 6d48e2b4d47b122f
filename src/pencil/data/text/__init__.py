"""Plain text: corpora, and how they become token ids."""
