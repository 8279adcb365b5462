from ._difference import (
    TensorDifference as TensorDifference,
    WeightDifference as WeightDifference,
    difference as difference,
)
