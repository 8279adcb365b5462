"""Diagonal Fisher information of a model's blocks, masks based on `full` and `retain`, and erasure within the masks.

Fisher information is the mean over examples of the squared gradient of the mean entity NLL. If the model's blocks allow
it, gradients for several examples come from one forward and one backward pass; otherwise, each example runs alone. To
bound memory, layers are processed in groups whose squared gradients fit in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from uds_lens._compat.bitsandbytes import is_4bit_layer, plain_weight
from uds_lens._progress import progress
from uds_lens._storage.files import IN_TEMPORARY, SpillFolder, writing
from uds_lens.data import TokenBatch, make_batch
from uds_lens.data._tokens import TokenRow
from uds_lens.errors import ModelError
from uds_lens.generation._reading import normed_at_window, raise_not_finite
from uds_lens.metrics._definitions.white_box import FRACTIONS
from uds_lens.models import HookedModel
from uds_lens.models._hooked import clone_sharing_weights
from uds_lens.patching._costs import ModelCosts
from uds_lens.patching._hooks import split_call

logger = logging.getLogger(__name__)

_GRAPH_BYTES = 1 << 28
"""Memory for activations kept for the backward pass. An example that exceeds this limit runs alone."""

_EPSILON = 1e-30  # avoids division by zero without affecting ratios of even tiny squared gradients

_Take: TypeAlias = Callable[[int, int, Float[Tensor, "weight"]], None]
"""Callback that gets a layer, a weight's offset in the layer's flattened parameters, and the weight's flattened float32
gradient for one example. It must not keep the tensor."""

_Starts: TypeAlias = dict[int, dict[str, int]]
"""Per layer, the offset of each weight in the layer's flattened parameters."""


class _NotByToken(Exception):  # noqa: N818 - a signal, not an error
    """Raised if a block has weights whose gradients cannot be separated by token; the message gives the reason."""


# Gradients per example for the weights of each block.


def _each_gradient(
    model: HookedModel, rows: Sequence[TokenRow], layers: Sequence[int], take: _Take, *, desc: str, show: bool | None
) -> None:
    """Call `take` with every example's gradient for every weight in the given layers."""
    starts = {layer: _starts(model, layer) for layer in layers}
    try:
        together = _may_run_together(model, rows, min(layers))
        tokens = max(1, _GRAPH_BYTES // _kept_per_token(model, layers)) if together else 1
        batches = ModelCosts.of(model.hf.config, model.device).forward_batches(rows, token_budget=tokens)
        for indices in progress(batches, desc=desc, unit="batch", enabled=show):
            if together:
                try:
                    _side_by_side(model, rows, indices, starts, take)
                    continue
                except _NotByToken as why:
                    logger.info("%r: computing gradients one example at a time, because %s", model.name, why)
                    together = False
            for index in indices:
                _alone(model, rows, index, starts, take)
    except ModelError:
        with torch.no_grad():
            for index in range(len(rows)):  # batches are ordered by length, so find the first failing example
                _loss(model, rows, _batch(model, rows, [index]))
        raise


def _block_parameters(model: HookedModel, layer: int) -> list[tuple[str, nn.Parameter]]:
    """Return the weights of one block, sorted by name; raise `ModelError` if they are quantised."""
    named = sorted(model.anatomy.layers[layer].named_parameters())
    integer = [name for name, parameter in named if not parameter.is_floating_point()]
    if integer:
        raise ModelError(f"{model.name!r}: {integer[0]} is quantised, and has no gradient. Dequantise the model.")
    return named


def _starts(model: HookedModel, layer: int) -> dict[str, int]:
    starts, at = {}, 0
    for name, parameter in _block_parameters(model, layer):
        starts[name] = at
        at += parameter.numel()
    return starts


def _n_weights(model: HookedModel, layer: int) -> int:
    return sum(parameter.numel() for _, parameter in _block_parameters(model, layer))


def layer_turns(model: HookedModel, memory_gb: float) -> list[list[int]]:
    """Group layers so that each group's squares and gradients (float32) fit in memory; at least one layer per group."""
    turns: list[list[int]] = []
    used = float("inf")
    for layer in range(model.n_layers):
        need = 8 * _n_weights(model, layer)
        if used + need > memory_gb * 2**30:
            turns.append([])
            used = 0
        turns[-1].append(layer)
        used += need
    return turns


def _kept_per_token(model: HookedModel, layers: Sequence[int]) -> int:
    """Estimate the bytes that a pass keeps per token, as twice the inputs and outputs of the layers' linear maps."""
    maps = [m for layer in layers for m in model.anatomy.layers[layer].modules() if isinstance(m, nn.Linear)]
    numbers = sum(m.in_features + m.out_features for m in maps) or model.d_model * 32 * len(layers)
    return 2 * numbers * model.dtype.itemsize


def _batch(model: HookedModel, rows: Sequence[TokenRow], indices: Sequence[int]) -> TokenBatch:
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    return make_batch(rows, indices=indices, pad_token_id=pad).to(model.device)


def _loss(model: HookedModel, rows: Sequence[TokenRow], batch: TokenBatch) -> Tensor:
    """Return the sum over examples of the mean entity NLL, so that each example contributes its own gradient."""
    states = normed_at_window(model, batch)
    scored = batch.scored_mask.to(states.device)
    logits = model.anatomy.unembed(states[scored]).float()
    targets = batch.targets.to(logits.device)[scored.to(logits.device)]
    nll = nn.functional.cross_entropy(logits, targets, reduction="none")
    means = torch.stack([part.mean() for part in nll.split(scored.sum(-1).tolist())])
    broken = (~means.detach().isfinite()).nonzero()[:, 0].tolist()
    if broken:
        raise_not_finite(model.name, rows[min(batch.rows[place] for place in broken)].example.question)
    return means.sum()


def _alone(model: HookedModel, rows: Sequence[TokenRow], index: int, starts: _Starts, take: _Take) -> None:
    """Compute the gradients for one example with autograd."""
    batch = _batch(model, rows, [index])
    weights = [(layer, starts[layer][name], p) for layer in starts for name, p in _block_parameters(model, layer)]
    flat = [parameter for _, _, parameter in weights]
    with differentiable(flat), torch.enable_grad():
        loss = _loss(model, rows, batch)
        gradients = torch.autograd.grad(loss, flat, allow_unused=True, materialize_grads=True)
    for (layer, start, _), gradient in zip(weights, gradients, strict=True):
        take(layer, start, gradient.reshape(-1).float())


@contextmanager
def differentiable(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Enable gradients for the given weights within a `with` block."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, had in zip(parameters, before, strict=True):
            parameter.requires_grad_(had)


# Gradients of several examples from one forward and one backward pass over all of them.
# The pass computes gradients only for states, not for weights. If a module maps states to states token by token, its
# weight gradient for one example follows from its input and its output's gradient at that example's tokens; for a
# linear map, this is `sum_t g_t x_t^T`. Padding and other examples therefore do not matter.


def _side_by_side(
    model: HookedModel, rows: Sequence[TokenRow], indices: Sequence[int], starts: _Starts, take: _Take
) -> None:
    """Compute the gradients of a batch; raise `_NotByToken` if a module does not map each token exactly once."""
    batch = _batch(model, rows, indices)
    places: dict[nn.Module, tuple[int, dict[str, int]]] = {}  # for modules that own weights
    for layer in starts:
        for path, module in model.anatomy.layers[layer].named_modules():
            prefix = f"{path}." if path else ""
            own = {name: starts[layer][prefix + name] for name, _ in module.named_parameters(recurse=False)}
            if own:
                places[module] = layer, own
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    keep = _keeper(seen, batch)
    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(_graph_from(model, min(starts)))
        for module in places:
            stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))
        total = _loss(model, rows, batch)
        if len(seen) < len(places):
            raise _NotByToken("a module's weights are used without calling the module")
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            total, [left for _, left in seen.values()], allow_unused=True
        )
    lengths = batch.attention_mask.sum(1).tolist()
    for (module, (states, _)), gradient in zip(seen.items(), gradients, strict=True):
        if gradient is None:
            continue
        layer, own = places[module]
        by_token = _scales_by_token(module, states, gradient)
        for place, length in enumerate(lengths):
            real = slice(states.shape[1] - length, None)
            by_weight: Iterator[tuple[str, Tensor]]
            if by_token is not None:
                by_weight = ((name, scales[place, real].flatten(0, -2).sum(0)) for name, scales in by_token)
            else:
                by_weight = _module_gradients(module, states[place, real], gradient[place, real])
            for name, weights in by_weight:
                take(layer, own[name], weights.reshape(-1).float())


def _graph_from(model: HookedModel, layer: int) -> RemovableHandle:
    """Within a `with` block, start the autograd graph at the input of a layer."""

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, rest, options = split_call(args, kwargs)
        return (hidden.detach().requires_grad_(), *rest), options

    return model.anatomy.layers[layer].register_forward_pre_hook(begin, with_kwargs=True)


def _keeper(seen: dict[nn.Module, tuple[Tensor, Tensor]], batch: TokenBatch) -> Callable[..., None]:
    """Return a hook that records the input and output of each module."""
    shape = batch.input_ids.shape

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        by_token = (
            len(args) == 1
            and not kwargs
            and all(isinstance(states, Tensor) and states.shape[:2] == shape for states in (args[0], output))
        )
        if not by_token or module in seen or not output.requires_grad:
            raise _NotByToken(f"a {type(module).__name__} does not process each token exactly once")
        seen[module] = args[0].detach(), output

    return keep


def _scales_by_token(module: nn.Module, entered: Tensor, back: Tensor) -> list[tuple[str, Tensor]] | None:
    """Return a norm's scale gradients for each token of each example; None if the module is not such a norm."""
    named = list(module.named_parameters(recurse=False))
    if type(module) in (nn.Linear, nn.LayerNorm) or any(p.shape != entered.shape[-1:] for _, p in named):
        return None
    ones = [1] * (entered.ndim - 3)
    scales = {name: p.detach().repeat(*entered.shape[:2], *ones, 1).requires_grad_() for name, p in named}
    try:
        with torch.enable_grad():
            output = torch.func.functional_call(module, scales, (entered,))
    except RuntimeError:
        return None  # the scales are not applied by broadcasting
    grads = torch.autograd.grad(output, list(scales.values()), back, allow_unused=True, materialize_grads=True)
    return list(zip(scales, grads, strict=True))


def _module_gradients(module: nn.Module, entered: Tensor, back: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's gradients for one example, from its input and its output's gradient."""
    if type(module) is nn.Linear:
        yield "weight", back.flatten(0, -2).T @ entered.flatten(0, -2)
        if module.bias is not None:
            yield "bias", back.flatten(0, -2).sum(0)
        return
    weights = {name: p.detach().requires_grad_() for name, p in module.named_parameters(recurse=False)}
    with torch.enable_grad():
        output = torch.func.functional_call(module, weights, (entered[None],))
    gradients = torch.autograd.grad(output, list(weights.values()), back[None], allow_unused=True)
    yield from ((name, g) for name, g in zip(weights, gradients, strict=True) if g is not None)


def _may_run_together(model: HookedModel, rows: Sequence[TokenRow], layer: int) -> bool:
    """Return whether batching the shortest and the longest example leaves their squares in one layer unchanged."""
    if model.runs_hooks or model.is_wrapped or len(rows) < 2:
        return False
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    pair, starts = [order[0], order[-1]], {layer: _starts(model, layer)}
    together, alone = (torch.zeros(_n_weights(model, layer), dtype=torch.float32) for _ in range(2))

    def squares_into(total: Tensor) -> _Take:
        def add(layer: int, start: int, gradient: Tensor) -> None:
            total[start : start + len(gradient)] += gradient.square().to(total.device)

        return add

    try:
        _side_by_side(model, rows, pair, starts, squares_into(together))
    except _NotByToken as why:
        logger.info("%r: computing gradients one example at a time, because %s", model.name, why)
        return False
    for index in pair:
        _alone(model, rows, index, starts, squares_into(alone))
    # Compare each weight relative to its own largest square, not the block's. Gradients that are only rounding error (a
    # key bias) are ignored.
    tolerance, rounding = (1e-3, 1e-6) if model.dtype == torch.float32 else (0.1, 1e-3)
    least = rounding * float(alone.max())
    begins = sorted(starts[layer].values())
    for begin, end in zip(begins, [*begins[1:], len(alone)], strict=True):
        error = float((together[begin:end] - alone[begin:end]).abs().max())
        if not error <= tolerance * max(float(alone[begin:end].max()), least):
            logger.info("%r: computing gradients one example at a time, because batched gradients differ", model.name)
            return False
    return True


# Diagonals, in memory or on disk (one file per layer).


def diagonal_fisher(
    model: HookedModel,
    rows: Sequence[TokenRow],
    layers: Sequence[int],
    *,
    desc: str = "Fisher",
    show: bool | None = None,
) -> dict[int, Float[Tensor, "weight"]]:
    """Return the mean over examples of the squared gradient of the mean entity NLL, for the given layers' weights.

    Args:
        model: The model; a 4-bit model must go through `dequantised` first.
        rows: The tokenised examples.
        layers: The layers, whose diagonals are all held in memory.
        desc: Label of the progress bar.
        show: Whether to show a progress bar; None shows it in terminals only.

    Returns:
        For each layer, the values for its flattened parameters, as float32.

    Raises:
        ModelError: Weights are quantised, or the model outputs NaN or infinite logits (the message names the first
            example).
    """
    sums = {}
    for layer in layers:
        weights = _block_parameters(model, layer)
        device = weights[0][1].device if weights else model.device
        sums[layer] = torch.zeros(_n_weights(model, layer), dtype=torch.float32, device=device)

    def add(layer: int, start: int, gradient: Tensor) -> None:
        sums[layer][start : start + len(gradient)].addcmul_(gradient, gradient)

    _each_gradient(model, rows, layers, add, desc=desc, show=show)
    return {layer: total.div_(len(rows)) for layer, total in sums.items()}


def spill_fisher(
    model: HookedModel, rows: Sequence[TokenRow], *, memory_gb: float, show: bool | None = None
) -> SpillFolder:
    """Write each layer's Fisher diagonal to a temporary file, processing as many layers at a time as fit in memory."""
    from safetensors.torch import save_file

    folder = SpillFolder()
    for layers in layer_turns(model, memory_gb):
        for layer, values in diagonal_fisher(model, rows, layers, desc="Fisher, retain", show=show).items():
            with writing(folder.path, advice=IN_TEMPORARY):
                save_file({"fisher": values.cpu().contiguous()}, folder.path / f"{layer}.safetensors")
    return folder


# Masks of weights with more Fisher information in `retain` than in `full`, and a model's information within these
# masks.


@dataclass(frozen=True, eq=False)
class FisherMasks:
    """For each layer, weights with more Fisher information in `retain` than in `full`, largest excess first.

    For a fraction p, the mask of a layer with n weights is the first `max(1, floor(p n))` entries, or all entries if
    there are fewer.
    """

    indices: tuple[Int[Tensor, "_"], ...]
    """Positions in the layer's flattened parameters, one tensor per layer."""

    retain: tuple[Float[Tensor, "_"], ...]
    """Fisher information of `retain` at these positions."""

    full: tuple[Float[Tensor, "_"], ...]
    """Fisher information of `full` at these positions."""

    n_weights: tuple[int, ...]
    """Number of weights per layer."""

    def size(self, layer: int, fraction: float) -> int:
        """Return the number of entries in a layer's mask."""
        return min(mask_size(self.n_weights[layer], fraction), len(self.indices[layer]))

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.indices)


def mask_size(n_weights: int, fraction: float) -> int:
    """Return the number of weights in a mask: a fraction of the layer's weights, rounded down, but at least one.

    >>> mask_size(25_000, 0.0001), mask_size(39_960, 0.0001), mask_size(100, 0.0001)
    (2, 3, 1)
    """
    return max(1, int(fraction * n_weights))


def fisher_masks(
    full: HookedModel,
    retain: SpillFolder,
    rows: Sequence[TokenRow],
    *,
    memory_gb: float,
    fractions: Sequence[float] = FRACTIONS,
    show: bool | None = None,
) -> FisherMasks:
    """Return each layer's largest entries of `a_i = max(F_retain - F_full, 0)`, with both models' values there.

    `retain` is from `spill_fisher`.
    """
    from safetensors.torch import load_file

    layers: list[tuple[Tensor, Tensor, Tensor, int]] = []
    for turn in layer_turns(full, memory_gb):
        for layer, values in diagonal_fisher(full, rows, turn, desc="Fisher, full", show=show).items():
            of_retain, of_full = load_file(retain.path / f"{layer}.safetensors")["fisher"], values.cpu()
            excess = (of_retain - of_full).clamp(min=0.0)
            top = excess.topk(mask_size(len(excess), max(fractions)))
            indices = top.indices[top.values > 0]
            layers.append((indices, of_retain[indices].double(), of_full[indices].double(), len(excess)))
    return FisherMasks(*zip(*layers, strict=True))


def masked_fisher(
    model: HookedModel, rows: Sequence[TokenRow], masks: FisherMasks, *, memory_gb: float, show: bool | None = None
) -> list[Float[Tensor, "_"]]:
    """Return the Fisher information of a model at the masked weights only."""
    sums = [torch.zeros(len(indices), dtype=torch.float64, device=model.device) for indices in masks.indices]
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def add(layer: int, start: int, gradient: Tensor) -> None:
        if (layer, start) not in parts:
            indices = masks.indices[layer].to(gradient.device)
            inside = ((indices >= start) & (indices < start + len(gradient))).nonzero()[:, 0]
            parts[layer, start] = indices[inside] - start, inside.to(model.device)
        at, into = parts[layer, start]
        sums[layer][into] += gradient[at].to(model.device).double().square()

    for turn in layer_turns(model, memory_gb):
        _each_gradient(model, rows, turn, add, desc="Fisher, model", show=show)
    return [(total / len(rows)).cpu() for total in sums]


def fisher_erasure(
    masks: FisherMasks, model: Sequence[Float[Tensor, "_"]], fraction: float
) -> tuple[Float[Tensor, "layer"], Float[Tensor, "layer"]]:
    """Return each layer's erasure, `1 - clip((F_ret - F_unl) / (e + eps), 0, 1)`, and weight `e = F_ret - F_full`.

    Args:
        masks: From `fisher_masks`.
        model: From `masked_fisher`.
        fraction: Size of the mask as a fraction of the weights; F_ret, F_unl and F_full are means over this mask.

    Returns:
        Erasure per layer (0: as in `full`, 1: as in `retain`), and the weights e (0 for layers without a mask).

    Example:
        >>> one = lambda value: (torch.tensor([value]),)
        >>> masks = FisherMasks((torch.tensor([3]),), one(4.0), one(2.0), (10,))
        >>> [values.tolist() for values in fisher_erasure(masks, [torch.tensor([3.0])], 0.01)]
        [[0.5], [2.0]]
    """
    erasure, weights = [], []
    for layer in range(masks.n_layers):
        size = masks.size(layer, fraction)
        if size == 0:
            erasure.append(torch.nan)
            weights.append(0.0)
            continue
        retain, full, unlearned = (
            float(values[layer][:size].double().mean()) for values in (masks.retain, masks.full, model)
        )
        excess = retain - full
        erasure.append(1.0 - min(max((retain - unlearned) / (excess + _EPSILON), 0.0), 1.0))
        weights.append(excess)
    return torch.tensor(erasure, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


def dequantised(model: HookedModel) -> HookedModel:
    """Return a model with 4-bit layers replaced by plain linear layers, which have gradients.

    The given model is not changed; without 4-bit layers, it is returned as is. Weights that are not quantised are
    shared.
    """
    if not any(is_4bit_layer(module) for module in model.hf.modules()):
        return model
    plain: Any = clone_sharing_weights(model.hf)
    for parent in list(plain.modules()):
        for name, child in parent.named_children():
            if is_4bit_layer(child):
                setattr(parent, name, _plain_linear(child, model.dtype))
    return HookedModel(plain, model.tokenizer, name=model.name, owned=False)


def _plain_linear(layer: Any, dtype: torch.dtype) -> nn.Linear:
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(plain_weight(layer).to(dtype), requires_grad=False)
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.data.to(dtype), requires_grad=False)
    return plain
