"""The operations of models, as launches of kernels, and the arrays that they read and write."""
