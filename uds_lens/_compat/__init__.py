"""Code that depends on private or unstable internals of other libraries: one file per library, in small functions.

No other module uses such internals. `tests/compat` tests each function, so a breaking upgrade fails there first.
"""
