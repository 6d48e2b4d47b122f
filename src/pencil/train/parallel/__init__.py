"""Training on several devices: DDP, FSDP2 and exact mode."""
