"""Steps that a model runs at load, before any is asked for: what they leave is never read."""
