from ._baseline import Baseline as Baseline
from ._baseline import RecordedBaseline as RecordedBaseline
