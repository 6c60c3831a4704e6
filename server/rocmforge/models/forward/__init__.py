"""The forward pass in prose, and the operations that it is written in."""
