"""Tokenizers of GGUF files."""
