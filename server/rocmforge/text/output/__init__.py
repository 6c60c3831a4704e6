"""Text of an answer while it arrives: whole characters, stop strings, reasoning, grammars."""
