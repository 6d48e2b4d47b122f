"""What a model costs, from its config: parameters, FLOPs, memory, and the least time a device would take."""
