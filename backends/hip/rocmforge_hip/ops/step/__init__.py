"""A step on its way to the device and back: its shape, its arrays and where they lie."""
