from ._baseline import Baseline as Baseline
from ._map import DepthMap as DepthMap, depth_map as depth_map
from ._precision import limit_for as limit_for
