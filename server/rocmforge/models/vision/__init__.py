"""Preparation of pictures for models that take images, and their places in a prompt."""
