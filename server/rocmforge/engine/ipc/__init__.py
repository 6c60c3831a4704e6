"""Values and frames that cross between the server process and an engine process."""
