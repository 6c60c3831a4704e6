"""The definition of a backend (`protocol`, `ops`), and how one is found (`registry`)."""
