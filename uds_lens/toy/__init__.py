"""The embedded world: a small fictitious data set and small checkpoints trained on it."""

from uds_lens.toy.facts import generate
from uds_lens.toy.world import World, load

__all__ = ["World", "generate", "load"]
