"""Speculative decoding: draft tokens by prompt lookup or by a draft model."""
