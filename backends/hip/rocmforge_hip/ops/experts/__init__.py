"""Mixtures of experts by launching kernels (kernels/include/rf/experts/experts.h)."""
