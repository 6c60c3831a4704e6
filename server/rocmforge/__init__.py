"""ROCmForge: an OpenAI-compatible model server for AMD GPUs."""

__version__ = "0.1.0"
