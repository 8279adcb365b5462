"""Code that depends on private or unstable parts of other libraries: one file per library, one small function per part.

No other file uses such parts. `tests/compat` has a test for each, so that a breaking upgrade fails there first.
"""
