"""What a backend is (`protocol`, `ops`) and how one is found (`registry`)."""
