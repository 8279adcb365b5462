from ._baseline import Baseline as Baseline
from ._two_stage import RecordedBaseline as RecordedBaseline
