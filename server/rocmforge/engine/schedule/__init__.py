"""The choice of each step's tokens, and their layout for the backend."""
