"""Bounded reading of folders as Transformers saves models: configuration, weights, tokens."""
