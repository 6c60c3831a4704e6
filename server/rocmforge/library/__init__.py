"""Models by name: what is on this machine, whoever put it there, and what a hub has."""
