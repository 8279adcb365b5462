"""Code that depends on private or unstable parts of other libraries: one file per library, one small function per part.

No other module uses such parts. `tests/compat` tests each function, so a breaking upgrade fails there first.
"""
