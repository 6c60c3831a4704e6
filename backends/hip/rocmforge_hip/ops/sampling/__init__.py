"""Drawing tokens on the device: samplers, and logits processors between mask and draw."""
