"""Images of requests: from what a client writes to what stands in a prompt."""
