"""ActPert: steer a prompt's hidden states away from the states caused by noise on the subject's embeddings.

Reference: Chen et al. 2025 (arXiv 2505.23270), Algorithm 1 (every block, independent noise). The paper does not fully
specify the number of copies, the sign and the positions; each field documents the choice made here. To first order the
direction is `-gamma J mean(eta)`, which is mostly noise with few copies. Antithetic copies, an option not in the paper,
cancel this first-order term. Two controls are also run, one with a random direction of the same norm and one with the
opposite sign.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from jaxtyping import Bool, Float
from torch import Tensor, nn

from uds_lens._settings import validated
from uds_lens._types import NonNegativeInt, PositiveInt
from uds_lens.elicitation._asking import Answers, Ask, Asking, changed_output, groups_of_one_length
from uds_lens.elicitation._options import Access, Injection
from uds_lens.elicitation._probes import Context, Prompt, Skip, keyed_seed, name_pattern, name_with_settings
from uds_lens.errors import ConfigError, Setting
from uds_lens.models import HookedModel
from uds_lens.patching import row_layout
from uds_lens.patching._hooks import first_tensor


@validated
@dataclass(frozen=True, kw_only=True)
class ActPert:
    """Perturb activations. `elicit` adds the controls automatically.

    Raises:
        ConfigError: A value is outside its range.

    Example:
        >>> [control.name for control in ActPert().controls]
        ['actpert(sign=-1)', 'actpert(direction=random)']
    """

    access: ClassVar[Access] = "activations"
    injects: ClassVar[Injection] = "nothing"
    opening: ClassVar[str] = ""
    samples_too: ClassVar[bool] = True

    layer: NonNegativeInt | Literal["all"] = "all"
    """Block whose output is steered (counted from 0), or `all`, as in Algorithm 1. The paper's experiments steer only
    block 12 of 32."""

    gamma: Annotated[float, Ge(0), Lt(1e6)] = 0.01
    """Standard deviation of the noise, in embedding units. The effect of the noise depends on the model, so the results
    also record `gamma_rms`, which is `gamma` divided by the root mean square of the disturbed embeddings."""

    copies: PositiveInt = 8
    """Number of noisy copies of each prompt."""

    antithetic: bool = False
    """Pair copies with opposite noise, so that the first-order effect cancels (not in the paper). False draws
    independent noise for every copy, as Algorithm 1 does."""

    sign: Literal[1, -1] = 1
    """1 adds the clean states minus the mean disturbed states, as in the paper; -1 subtracts this difference, as a
    control."""

    direction: Literal["difference", "random"] = "difference"
    """`random` is a control: a random direction with the same norm at each position."""

    def __post_init__(self) -> None:
        if self.antithetic and self.copies % 2:
            raise ConfigError(Setting("copies"), f" must be even for antithetic pairs; got {self.copies}.")

    @property
    def name(self) -> str:
        """Probe name, with all settings that differ from the default."""
        return name_with_settings("actpert", self)

    @property
    def controls(self) -> tuple[ActPert, ...]:
        """Control probes: this probe with the opposite sign, and this probe with a random direction."""
        if self.sign == -1 or self.direction == "random":
            return ()
        return (dataclasses.replace(self, sign=-1), dataclasses.replace(self, direction="random"))

    def prompt(self, prompt: Prompt, context: Context) -> Prompt:
        """Return the plain question; skip the row if the question does not name the subject."""
        subject = context.example.subject
        if subject is None or name_pattern(subject).search(prompt.question) is None:
            raise Skip("the question does not name the subject, whose embeddings would be disturbed")
        return prompt

    def answer(self, model: HookedModel, asks: Sequence[Ask], asking: Asking) -> Answers:
        """Generate answers after adding the direction to the prompt's states (generated tokens are not steered)."""
        layers = self.chosen_layers(model)
        texts: list[tuple[str, ...]] = [()] * len(asks)
        details: list[dict[str, object]] = [{}] * len(asks)
        prefilled = 0
        prompts = [ask.rendered.ids for ask in asks]
        samples = asking.options.samples if asking.decoding == "sampled" else 1
        for rows in groups_of_one_length(model, prompts, asking.options, samples=samples):
            deltas, rms = zip(*(self.delta(model, asks[row], seed=asking.options.seed) for row in rows), strict=True)
            with ExitStack() as steered:
                for layer, steer in zip(layers, torch.stack(deltas, dim=1), strict=True):
                    change = changed_output(
                        model.anatomy.layers[layer],
                        lambda states, steer=steer: states + steer.to(states),  # type: ignore[misc]
                        length=steer.shape[1],
                    )
                    steered.enter_context(change)
                new = asking.generate(model, [asks[row] for row in rows], [prompts[row] for row in rows])
            prefilled += new.prefilled
            for n, row in enumerate(rows):
                texts[row] = new.texts[n]
                details[row] = {
                    "layer": self.layer,
                    "gamma_rms": rms[n],
                    "delta_norm": float(deltas[n].norm(dim=-1).mean()),
                    "endless": new.endless[n],
                }
        return Answers([ask.rendered.text for ask in asks], texts, details, prefilled)

    def chosen_layers(self, model: HookedModel) -> list[int]:
        """Return the indices of the steered blocks.

        Raises:
            ConfigError: The model has no such block.
        """
        if self.layer == "all":
            return list(range(model.n_layers))
        if self.layer >= model.n_layers:
            raise ConfigError(
                Setting("layer"), f" must be below {model.n_layers}, the number of blocks; got {self.layer}."
            )
        return [self.layer]

    @torch.no_grad()
    def delta(self, model: HookedModel, ask: Ask, *, seed: int) -> tuple[Float[Tensor, "chosen pos d_model"], float]:
        """Return a prompt's steering vectors, and gamma divided by the root mean square of the disturbed embeddings.

        The steering vectors are `sign (A - mean_j A_j)` at each chosen block, where A is the block's output and A_j is
        its output with noise `gamma eta_j` on the subject's embeddings. The noise depends only on the seed and the
        example.
        """
        ids = torch.tensor([ask.rendered.ids], device=model.device)
        at = subject_positions(model, ask).to(model.device)
        generator = torch.Generator().manual_seed(keyed_seed(seed, ask.id, "actpert"))
        layers, width = self.chosen_layers(model), model.hf.get_input_embeddings()(ids).shape[-1]
        count = self.copies // 2 if self.antithetic else self.copies
        noise = torch.randn(count, ids.shape[1], width, generator=generator, dtype=torch.float32)
        noise = torch.cat([noise, -noise]) if self.antithetic else noise
        noise = noise.to(model.device) * self.gamma * at[None, :, None]
        clean, embedded = _states(model, ids, layers, None)
        at_once = self.copies if row_layout(model).side is not None else 1
        disturbed = [_states(model, ids.expand(len(n), -1), layers, n)[0] for n in noise.split(at_once)]
        delta = clean[:, 0] - torch.cat(disturbed, dim=1).mean(1)
        if self.direction == "random":
            other = torch.randn(delta.shape, generator=generator, dtype=torch.float32).to(delta)
            delta = other / other.norm(dim=-1, keepdim=True) * delta.norm(dim=-1, keepdim=True)
        rms = embedded[0, at].square().mean().sqrt()
        return self.sign * delta, float(self.gamma / rms)


def subject_positions(model: HookedModel, ask: Ask) -> Bool[Tensor, "pos"]:
    """Return a mask of the prompt tokens that overlap the subject's name in the question."""
    text, question = ask.rendered.text, ask.rendered.prompt.question
    start = text.rindex(question)
    names = [(start + m.start(), start + m.end()) for m in name_pattern(ask.subject or "").finditer(question)]
    tokenizer = model.tokenizer
    assert tokenizer is not None  # prompts were made with this tokenizer
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    hit = [any(a < stop and b > begin for begin, stop in names) for a, b in coded["offset_mapping"]]
    return torch.tensor([False] * (len(ask.rendered.ids) - len(hit)) + hit)  # special tokens before the text


def _states(
    model: HookedModel, ids: Tensor, layers: Sequence[int], noise: Tensor | None
) -> tuple[Float[Tensor, "layer row pos d_model"], Float[Tensor, "row pos d_model"]]:
    """Return the outputs of the given blocks, and the embeddings before noise is added."""
    kept: list[Tensor] = []
    embedded: list[Tensor] = []

    def disturb(states: Tensor) -> Tensor:
        embedded.append(states)
        return states if noise is None else states + noise.to(states)

    def keep(module: nn.Module, args: object, output: object) -> None:
        kept.append(first_tensor(output).float())

    with ExitStack() as hooked:
        for layer in layers:
            hooked.enter_context(model.anatomy.layers[layer].register_forward_hook(keep))
        hooked.enter_context(changed_output(model.hf.get_input_embeddings(), disturb, length=ids.shape[1]))
        model.anatomy.base(input_ids=ids, use_cache=False)
    return torch.stack(kept), embedded[0].float()
