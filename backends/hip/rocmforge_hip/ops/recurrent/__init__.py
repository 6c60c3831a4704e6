"""Layers with a state for each sequence, by launching kernels (rf/recurrent/recurrent.h)."""
