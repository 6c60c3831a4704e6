"""Limits on the tokens that a sequence may draw: grammars and sections of reasoning."""
