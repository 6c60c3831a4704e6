"""Towers in folders: the part of a model that reads images."""
