from ._baseline import Baseline as Baseline, RecordedBaseline as RecordedBaseline
from ._map import DepthMap as DepthMap, MapCell as MapCell, depth_map as depth_map
from ._precision import limit_for as limit_for
