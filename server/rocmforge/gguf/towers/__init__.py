"""Towers in GGUF files of their own, which lie beside those of their models."""
