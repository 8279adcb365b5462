from ._difference import WeightDifference as WeightDifference, difference as difference
