"""Places below the device where KV blocks outlive it: memory of the host, and files."""
