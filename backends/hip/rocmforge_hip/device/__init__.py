"""A device: the libraries beneath it, the driver, memory, kernels and their launch."""
