"""Layers with a state for each sequence, by launching kernels (kernels/include/rf/recurrent.h)."""
