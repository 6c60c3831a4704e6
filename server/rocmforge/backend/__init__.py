"""The definition of a backend (`protocol`, `step`), and how one is found (`registry`)."""
