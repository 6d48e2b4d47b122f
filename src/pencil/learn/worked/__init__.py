"""The worked examples as traces."""
