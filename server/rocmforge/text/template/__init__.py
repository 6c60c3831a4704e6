"""Chat templates, rendered in a bounded sandbox that tracks who wrote what."""
