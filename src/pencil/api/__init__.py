"""What users call from Python and what the verbs stand on: runs are set up, opened, trained, verified and used."""
