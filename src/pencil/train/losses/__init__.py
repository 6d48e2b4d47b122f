"""Losses over a vocabulary, plain and fused."""
