"""The `config.json` of folders: a model as plain values."""
