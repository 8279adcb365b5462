"""The built-in objectives, one per file: a pure loss function, a configuration and a declaration."""
