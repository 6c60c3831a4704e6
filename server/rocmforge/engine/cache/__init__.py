"""Blocks of the KV cache: who holds them, and which prefixes they keep."""
