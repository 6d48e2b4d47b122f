"""What a model costs, from its config: parameters, FLOPs, memory, and the least time a device would take.

A cost is counted, not measured. Parameters are those of the model on the meta device, FLOPs are what torch's counter
counts there. Only activation memory is a formula, since it depends on what eager PyTorch keeps on CUDA; a GPU's memory
is what it is held against, in `benchmarks/cost.py`.
"""
