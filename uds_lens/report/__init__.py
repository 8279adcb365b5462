"""Reports on audits and dashboards of many models, each a single HTML file that opens offline."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
