from ._facts import generate as generate
from ._world import (
    World as World,
)
from ._world import (
    load as load,
)
