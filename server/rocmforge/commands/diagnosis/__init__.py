"""The parts of `rocmforge doctor`: a look at the machine, and findings from it."""
