"""Text to tokens, conversations to prompts, and tokens back to text."""
