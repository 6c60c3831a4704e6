"""AMD GPUs as the kernel tells of them: power, heat, memory and whose it is, errors, resets."""
