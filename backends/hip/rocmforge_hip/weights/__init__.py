"""Weights on the device: which formats there are, where each tensor goes, and the way there."""
