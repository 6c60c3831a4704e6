"""The server's side: one client per model, which starts its engine process and watches it."""
