"""The built-in metrics, with one file per metric or group of related metrics. None of the files imports torch."""

from importlib import import_module
from pathlib import Path

_ORDER = ("es", "prob", "rouge", "membership_attacks", "white_box", "uds", "aggregates")
"""Files in the order of the published tables, with aggregates after their parts; other files come last."""

# Import all files in this order, which is also the order of METRICS, whichever file is imported first.
for _name in dict.fromkeys((*_ORDER, *sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))):
    import_module(f"{__name__}.{_name}")
