"""The leaves: torch only, ints and callables in, tensors out; no config, no input or output, no seeding."""
