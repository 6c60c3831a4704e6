"""The kernels as the backend launches them: a declaration for each, as `device.arguments` reads it.

The comment above a kernel in kernels/src says what its arguments are.
"""
