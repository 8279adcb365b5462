"""Running an audit: plan, states of the sources, the patched pass over `full`, and `Baseline` (stage 1, reused)."""

import sys
from types import ModuleType
from typing import NoReturn

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Room(ModuleType):
    """A module that says what to call instead, where somebody tries `ul.audit(...)`."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("ul.audit is a module: call ul.DepthAudit.run(full, retain, unlearned, examples).")


sys.modules[__name__].__class__ = _Room
