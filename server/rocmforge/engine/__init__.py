"""The engine: decides what a model computes next, in a process of its own."""
