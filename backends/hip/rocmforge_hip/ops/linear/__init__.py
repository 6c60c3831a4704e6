"""Products of activations with matrices: which kernel makes each, and its launch."""
