"""The checks of `rocmforge verify`: each operation, compared with NumPy in float64.

The operations are launched by the classes that serve models. The expectations are written here
once more, from their definitions, so that neither side can inherit a mistake of the other.
"""
