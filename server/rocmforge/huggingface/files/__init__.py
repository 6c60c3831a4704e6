"""Files of a folder: found, decoded as JSON or mapped as safetensors, within bounds."""
