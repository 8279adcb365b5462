from ._facts import generate as generate
from ._world import World as World, load as load
