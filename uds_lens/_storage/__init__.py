"""Files that are either whole or absent, never overwrite foreign files, and reveal later changes."""
