"""What a model costs, from its config alone: numbers learned, FLOPs, memory, and the time a device would take."""
