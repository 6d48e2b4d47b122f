"""Tokenizers: characters, bytes, trained BPE, and those of other libraries."""
