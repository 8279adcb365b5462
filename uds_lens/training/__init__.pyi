from ._callback import DepthCallback as DepthCallback
from ._curve import DepthCurve as DepthCurve, DepthPoint as DepthPoint
