"""Tokenizers, from the plain values of a checkpoint."""
