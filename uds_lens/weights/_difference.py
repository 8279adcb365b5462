"""`difference`: compare the weights of two checkpoints, with one tensor in memory at a time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from uds_lens._progress import progress
from uds_lens._storage.weights import ALONE, weight_files
from uds_lens.errors import IncompatibleModelsError, ModelError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look

_LAYER = re.compile(r"\.(\d+)\.(.+)")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
"""Names of the head and of the input embedding; tied models store only the latter."""
_EXACT = 512
"""Size of a matrix's smaller side up to which all singular values are computed."""
_PLAIN, _NO_WEIGHTS = ("F64", "F32", "F16", "BF16"), ("I64", "BOOL")
"""Dtypes of unquantised weights in safetensors files, and of masks and positions, which are not compared."""


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """The difference between two versions of a tensor, other minus full."""

    layer: int | None
    """The tensor's block, counted from 0; None for embeddings, final norm and head."""

    component: str
    """The tensor's name within its block, such as `mlp.down_proj`, or its full name if it is in no block."""

    n_weights: int
    """Number of entries."""

    norm: float
    """Frobenius norm of full's tensor."""

    difference_norm: float
    """Frobenius norm of the difference."""

    spectral_norm: float
    """Largest singular value of the difference; for a vector, its norm."""

    retain_norm: float
    """Frobenius norm of retain minus full; NaN without a retain model."""

    dot: float
    """Inner product of the difference with retain minus full; NaN without a retain model."""

    @property
    def relative_norm(self) -> float:
        """`difference_norm / norm`: 0 if unchanged; NaN where full's tensor is 0."""
        return self.difference_norm / self.norm if self.norm else math.nan

    @property
    def stable_rank(self) -> float:
        """`(difference_norm / spectral_norm)**2`, from 1 up to the rank; NaN where nothing changed."""
        return (self.difference_norm / self.spectral_norm) ** 2 if self.spectral_norm else math.nan

    @property
    def cosine(self) -> float:
        """Cosine with retain minus full, in [-1, 1]; NaN if either difference is 0, or without a retain model."""
        product = self.difference_norm * self.retain_norm
        return self.dot / product if product else math.nan


@dataclass(frozen=True, kw_only=True)
class WeightDifference:
    """Differences between the weights of two checkpoints, as returned by `difference`."""

    full: str
    """The checkpoint that is subtracted."""

    other: str
    """The checkpoint compared with `full`."""

    retain: str | None
    """The retain model: each cosine is taken with its difference from `full`. None if none was given."""

    tensors: tuple[TensorDifference, ...]
    """Ordered by layer; tensors outside the blocks come first."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per tensor: layer, component, number of weights, norms, stable rank, cosine."""
        import pandas as pd

        derived = ("relative_norm", "stable_rank", "cosine")
        rows = [{**asdict(t), **{name: getattr(t, name) for name in derived}} for t in self.tensors]
        return pd.DataFrame(rows).astype({"layer": "Int64"})

    def layers_frame(self) -> pd.DataFrame:
        """Return one row per block: relative norm and cosine of all its weights, of attention, and of the MLP.

        Several tensors are treated as one vector of all their entries.
        """
        import pandas as pd

        rows = []
        for layer in sorted({t.layer for t in self.tensors if t.layer is not None}):
            own = [t for t in self.tensors if t.layer == layer]
            attention = [t for t in own if "attn" in t.component or "attention" in t.component.partition(".")[0]]
            mlp = [t for t in own if re.search(r"mlp|feed_forward|experts|ffn", t.component)]
            row: dict[str, Any] = {"layer": layer}
            for name, part in (("", own), ("attention_", attention), ("mlp_", mlp)):
                row[f"{name}relative_norm"] = together(part).relative_norm
                row[f"{name}cosine"] = together(part).cosine
            rows.append(row)
        return pd.DataFrame(rows)

    def plot(self, layers: pd.DataFrame | None = None, **look: Unpack[Look]) -> go.Figure:
        """Draw the change in the weights by layer, below the LER curve (see `uds_lens.plots.weight_profile`).

        Args:
            layers: `audit.layers_frame()` of an audit of the same model; None omits LER.
            **look: Theme, title, width, height (`uds_lens.plots.Look`).
        """
        from uds_lens import plots

        return plots.weight_profile(self.layers_frame(), layers, **look)


def together(tensors: Sequence[TensorDifference]) -> TensorDifference:
    """Treat several tensors as one vector; its spectral norm is its Frobenius norm."""

    def root(name: str) -> float:
        return math.sqrt(sum(getattr(t, name) ** 2 for t in tensors))

    whole = root("difference_norm")
    return TensorDifference(
        layer=tensors[0].layer if tensors else None,
        component="",
        n_weights=sum(t.n_weights for t in tensors),
        norm=root("norm"),
        difference_norm=whole,
        spectral_norm=whole,
        retain_norm=root("retain_norm"),
        dot=sum(t.dot for t in tensors),
    )


def difference(
    full: str | os.PathLike[str],
    other: str | os.PathLike[str],
    *,
    retain: str | os.PathLike[str] | None = None,
    show_progress: bool | None = None,
) -> WeightDifference:
    """Compare the weights of two checkpoints, tensor by tensor.

    For each tensor W of `full`, with D = other - full: relative norm |D|_F / |W|_F, spectral norm |D|_2, stable rank
    |D|_F^2 / |D|_2^2 (at most the rank, which for LoRA is at most r), and the cosine between D and retain - full, taken
    as vectors. `full` is first rounded to the dtype of the other checkpoint, so that untrained weights have no
    difference.

    Files are read one tensor at a time; no model is built. A stack of matrices (experts in one tensor) is treated as
    one matrix by joining its leading axes. A checkpoint with tied embeddings stores no head; its input embedding is
    then compared with the other checkpoint's head.

    Args:
        full: The model before training: a directory of safetensors files, or the id of a downloaded Hub model.
        other: The model after training, in the same form.
        retain: A model that never saw the forget set, for the cosines; with None, they are NaN.
        show_progress: Show a progress bar; None shows it in terminals and notebooks.

    Returns:
        The differences.

    Raises:
        ModelError: A checkpoint has no safetensors weights, is an adapter, or is quantised.
        IncompatibleModelsError: A checkpoint does not have the same tensors as `full`.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> found = ul.weights.difference(world.full, world.unlearned["npo"], retain=world.retain)
        >>> len(found.layers_frame()), bool((found.to_frame()["relative_norm"] < 1).all())
        (8, True)
    """
    with ExitStack() as stack:
        sources = [_Weights(place, stack) for place in (full, other, *([] if retain is None else [retain]))]
        names = _shared_names(sources)
        tensors = []
        for name in progress(names, desc="comparing weights", unit="tensor", enabled=show_progress):
            before, after, *rest = (source.tensor(name) for source in sources)
            if not before.is_floating_point():
                continue
            layer, component = _place(name)
            change = _change(before, after)
            kept = _change(before, rest[0]) if rest else None
            tensors.append(
                TensorDifference(
                    layer=layer,
                    component=component,
                    n_weights=before.numel(),
                    norm=_norm(before),
                    difference_norm=_norm(change),
                    spectral_norm=spectral_norm(change),
                    retain_norm=math.nan if kept is None else _norm(kept),
                    dot=math.nan if kept is None else float((change.double() * kept.double()).sum()),
                )
            )
    tensors.sort(key=lambda t: -1 if t.layer is None else t.layer)
    return WeightDifference(
        full=sources[0].name,
        other=sources[1].name,
        retain=sources[2].name if retain is not None else None,
        tensors=tuple(tensors),
    )


def spectral_norm(matrix: Float[Tensor, "*shape"]) -> float:
    """Return the largest singular value, or the norm of a vector. Large matrices use Lanczos iteration (ARPACK).

    >>> spectral_norm(torch.diag(torch.tensor([3.0, -4.0])))
    4.0
    """
    if matrix.ndim < 2 or not matrix.any():
        return _norm(matrix)
    flat = matrix.flatten(0, -2)
    if min(flat.shape) <= _EXACT:
        return float(torch.linalg.matrix_norm(flat.double(), ord=2))
    import numpy as np
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(0).standard_normal(min(flat.shape)).astype(np.float32)
    return float(svds(flat.float().numpy(), k=1, v0=start, return_singular_vectors=False)[0])


def _change(before: Tensor, after: Tensor) -> Tensor:
    return after.float() - before.to(after.dtype).float()


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _place(name: str) -> tuple[int | None, str]:
    """Split a tensor name into block and component.

    >>> _place("model.layers.3.mlp.down_proj.weight"), _place("lm_head.weight")
    ((3, 'mlp.down_proj'), (None, 'lm_head'))
    """
    match = _LAYER.search(name)
    layer, rest = (int(match[1]), match[2]) if match else (None, name)
    return layer, rest.removesuffix(".weight")


class _Weights:
    """The safetensors files of a checkpoint, kept open until `stack` closes."""

    def __init__(self, source: str | os.PathLike[str], stack: ExitStack) -> None:
        from safetensors import SafetensorError, safe_open

        self.name = os.fspath(source)
        folder = _folder(self.name)
        if (folder / "adapter_config.json").is_file():
            raise ModelError(f"{self.name!r} is an adapter: merge it into its base model, and compare the result.")
        files = weight_files(folder, self.name) or [folder / ALONE]
        try:
            opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise ModelError(f"{self.name!r} has no complete safetensors weights to compare: {error}") from error
        self._files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 - no mapping
        for name, file in self._files.items():
            dtype = file.get_slice(name).get_dtype()
            if dtype not in (*_PLAIN, *_NO_WEIGHTS) and not name.endswith(".bias"):  # byte masks of old GPTs
                raise ModelError(
                    f"{self.name!r} is quantised ({name!r} is stored as {dtype}): compare the original model."
                )
        self._stored_as: dict[str, str] = {}
        """Stored names of tensors that are read under another name."""
        self.names = sorted(self._files)

    def tie(self, head: str) -> None:
        """Use the input embedding as the head if this checkpoint stores no head."""
        embeddings = [name for name in self.names if _EMBEDDING.search(name)]
        if head not in self._files and len(embeddings) == 1:
            self._stored_as[head] = embeddings[0]
            self.names = sorted([*self.names, head])

    def shape(self, name: str) -> list[int]:
        name = self._stored_as.get(name, name)
        return list(self._files[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        name = self._stored_as.get(name, name)
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def _folder(source: str) -> Path:
    """Return the directory of a checkpoint, looking up a Hub id among downloaded models."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, local_files_only=True))
    except Exception as error:
        raise ModelError(
            f"there is no directory {source!r} here and no downloaded copy: run hf download {source}"
        ) from error


def _shared_names(sources: Sequence[_Weights]) -> list[str]:
    """Return the names of all tensors; if a checkpoint stores no head, its input embedding serves as the head."""
    full, *others = sources
    for head in {name for source in sources for name in source.names if _HEAD.search(name)}:
        for source in sources:
            source.tie(head)
    for other in others:
        apart = set(full.names) ^ set(other.names)
        shapes = [n for n in full.names if n in other.names and full.shape(n) != other.shape(n)]
        if apart or shapes:
            first = ", ".join(sorted(apart)[:3] or shapes[:3])
            raise IncompatibleModelsError(
                f"{other.name!r} does not have the same tensors as {full.name!r} ({first}, ...): only checkpoints with "
                "the same architecture and size can be compared."
            )
    return full.names
