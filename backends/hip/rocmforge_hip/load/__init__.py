"""Loading: what a model takes of a device's memory, and how it gets there."""
