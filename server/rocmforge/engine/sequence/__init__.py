"""One request within the engine: its tokens, its blocks and what it counts."""
