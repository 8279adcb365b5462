"""Atomic writes that never overwrite other programs' files, and checksums that reveal later changes."""
