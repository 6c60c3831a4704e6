"""Attention as launches of kernels: over the paged cache, and to all of a prompt."""
