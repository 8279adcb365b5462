"""The UDS paper's grid of 150 runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from uds_lens.errors import ConfigError
from uds_lens.unlearning._registry import make_config
from uds_lens.unlearning._settings import MethodConfig

_EPOCHS, _RATES, _ALPHAS = (5, 10), (1e-5, 2e-5, 5e-5), (1.0, 2.0, 5.0)
_WEIGHTED = {"epochs": _EPOCHS, "learning_rate": _RATES, "alpha": _ALPHAS}
_PAPER: dict[str, dict[str, tuple[Any, ...]]] = {
    "graddiff": _WEIGHTED,
    "idknll": _WEIGHTED,
    "npo": {**_WEIGHTED, "beta": (0.1,)},
    "idkdpo": {**_WEIGHTED, "beta": (0.1,)},
    "altpo": {**_WEIGHTED, "beta": (0.1,), "n_alternates": (1,)},
    "simnpo": {
        "epochs": _EPOCHS,
        "learning_rate": _RATES,
        "beta": (3.5, 4.5),
        "gamma": (0.125, 0.25),
        "delta": (1.0,),
        "alpha": (1.0,),
    },
    "rmu": {
        "epochs": _EPOCHS,
        "learning_rate": _RATES,
        "layer": (5, 10, 15),
        "scale": (10.0,),
        "reduction": ("open_unlearning",),
    },
    "undial": {
        "epochs": _EPOCHS,
        "learning_rate": (1e-5, 1e-4, 3e-4),
        "alpha": _ALPHAS,
        "beta": (10.0,),
        "reduction": ("open_unlearning",),
    },
}


def grid(name: str = "paper") -> Iterator[MethodConfig]:
    """Yield the configurations of a published comparison.

    Args:
        name: "paper" is the grid of the UDS paper: GradDiff, IdkNLL, NPO, IdkDPO, AltPO, SimNPO, RMU and UNDIAL, 18
            runs each and 24 of SimNPO, for a model of 16 layers. As there, AltPO has one alternate per question,
            and RMU and UNDIAL take their means as Open-Unlearning does.

    Returns:
        150 configurations, without repetition.

    Raises:
        ConfigError: No grid of that name.

    Example:
        >>> from uds_lens.unlearning import config_name
        >>> runs = list(grid("paper"))
        >>> len(runs), config_name(runs[0])
        (150, 'graddiff_lr1e-05_alpha1_epoch5')
    """
    if name != "paper":
        raise ConfigError(f"no grid {name!r}; there is 'paper'.")
    for method, axes in _PAPER.items():
        for values in product(*axes.values()):
            yield make_config(method, dict(zip(axes, values, strict=True)))
