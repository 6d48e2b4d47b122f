"""Checkpoints of other libraries: imported, exported, and compared with the original."""
