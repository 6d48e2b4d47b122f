"""Any number inside a model unfolded into its arithmetic: the tape records, a plan explains, a receipt shows."""
