"""Worked examples: published ones checked number by number, small ones to run."""
