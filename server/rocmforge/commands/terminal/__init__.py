"""The parts of commands that face people: messages typed, bars, tables."""
