"""The work of a model's own processor on a picture: size, tiles, patches."""
