"""What depends on private or unstable parts of other libraries: one file per library, one small function per part.

Nothing else in the package reaches for such a part. `tests/compat` has a test for each that names it, so that an
upgrade fails there first and says what to do.
"""
