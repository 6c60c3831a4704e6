"""The metadata of a GGUF file: a model as plain values."""
