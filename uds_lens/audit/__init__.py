"""Audits: their inputs, source states, patched passes over `full`, and `Baseline` (a reusable stage 1)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
