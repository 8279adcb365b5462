"""The metrics of the library: one file for each metric or group of related metrics. None of the files loads torch."""

from importlib import import_module
from pathlib import Path

_ORDER = ("es", "prob", "rouge", "membership_attacks", "white_box", "uds", "aggregates")
"""Files in the order of the published tables, aggregates after their parts; a file not named here comes last."""

# Whichever file is imported first, all are loaded in this order, which is also the order of METRICS.
for _name in dict.fromkeys((*_ORDER, *sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))):
    import_module(f"{__name__}.{_name}")
