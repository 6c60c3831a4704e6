"""Proof that a device computes what it should: a sample of what was served, computed again."""
