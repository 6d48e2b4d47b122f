"""What models learn from, as files, folders, standard input, or embedded in the package."""
