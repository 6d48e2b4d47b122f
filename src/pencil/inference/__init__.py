"""Using a trained model: text generation, beam search, diffusion sampling, attention pictures."""
