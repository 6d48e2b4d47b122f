"""The models: one frozen config, a table of presets, init and forward to logits each."""
