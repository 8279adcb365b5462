from ._baseline import Baseline as Baseline, RecordedBaseline as RecordedBaseline
