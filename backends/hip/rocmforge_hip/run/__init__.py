"""Steps of a loaded model: what goes up, what is launched or replayed, what comes down."""
