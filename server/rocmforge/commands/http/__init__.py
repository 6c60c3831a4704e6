"""The HTTP server below the application: its listener, protocol and certificate."""
