"""Pictures: from the bytes of a file to what a tower takes. Pillow runs in a child process only."""
