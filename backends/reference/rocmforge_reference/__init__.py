"""The reference backend: NumPy, written for reading; the oracle of every other backend."""
