"""`elicit`: run the same probes with the same budget and random numbers on the unlearned model and its controls."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import PlainValidator

from uds_lens._compat.transformers import longest_text
from uds_lens._optional_packages import require_package
from uds_lens._settings import as_settings, shown, validated
from uds_lens._storage.files import check_writable, refuse_to_replace
from uds_lens._storage.records import program_digest
from uds_lens._types import PositiveInt, Protocol
from uds_lens.audit._inputs import where_of
from uds_lens.data import ForgetExample, sample_examples
from uds_lens.data._prompts import announce_protocol
from uds_lens.data._readers import as_examples
from uds_lens.elicitation._act_pert import ActPert
from uds_lens.elicitation._asking import Asked, Asking, ByPrompt, Probe, ask_rows
from uds_lens.elicitation._gcg import GCG, SoftGCG
from uds_lens.elicitation._options import Decoding, ElicitOptions
from uds_lens.elicitation._probes import PRESETS, PromptProbe, find_probe, with_settings
from uds_lens.elicitation._results import ElicitationResults
from uds_lens.elicitation._saving import HOLDOUT, KIND, Part, Response, part_key, parts_folder, read_part, write_part
from uds_lens.errors import ConfigError, DataError, ResultFormatError, Setting
from uds_lens.generation._decoding import answer_end_ids
from uds_lens.generation._reading import growing_way
from uds_lens.models import HookedModel, read_checkpoint_info
from uds_lens.models._compatibility import check_compatible, deciding_record, protocol_of, require_embedded
from uds_lens.models._hooked import ModelSource
from uds_lens.results import ModelRecord, RunOptions
from uds_lens.results._records import fingerprint_of, open_to_measure, provenance

if TYPE_CHECKING:
    from uds_lens.data._readers import ExampleSource

logger = logging.getLogger(__name__)


_Examples: TypeAlias = Annotated[Sequence[ForgetExample], PlainValidator(lambda rows: tuple(as_examples(rows)))]


@validated
@dataclass(frozen=True, kw_only=True)
class ElicitData:
    """The questions for an elicitation, and other facts that probes may show.

    Each set may be anything that `load_examples` reads.

    Raises:
        DataError: There are no questions, or some ids are not unique.

    Example:
        >>> rows = [ForgetExample(str(n), f"Who wrote book {n}?", "Ada.") for n in range(9)]
        >>> len(ElicitData(forget=rows, limit=3).sample(rows, seed=0))
        3
    """

    forget: _Examples
    """The forget set."""

    retain: _Examples = ()
    """Retained facts, used as in-context examples by `ICL(source="retain")`."""

    holdout: _Examples = ()
    """Questions of the same kind that no model was trained on, as a weaker control
    (`ElicitationResults.control_frame`)."""

    limit: PositiveInt | None = None
    """Ask about a random sample of this many rows of `forget` and of `holdout` (`uds_lens.data.sample_examples`); None
    uses all rows. In-context examples still come from all rows."""

    def __post_init__(self) -> None:
        if not self.forget:
            raise DataError("no examples: elicitation needs at least one row with a question and an answer.")

    def sample(self, rows: Sequence[ForgetExample], *, seed: int) -> Sequence[ForgetExample]:
        """Return the rows to ask about."""
        return rows if self.limit is None else sample_examples(rows, self.limit, seed=seed)

    def sample_record(self, *, seed: int) -> dict[str, Any] | None:
        """Return the provenance record of the sampling; None if all rows are used."""
        if self.limit is None or self.limit >= len(self.forget):
            return None
        return {"limit": self.limit, "of": len(self.forget), "sample": "random", "seed": seed}


def elicit(
    model: ModelSource,
    examples: ElicitData | ExampleSource | Iterable[ForgetExample | Mapping[str, Any]],
    *,
    retain: ModelSource | None = None,
    full: ModelSource | None = None,
    probes: Sequence[str | PromptProbe | Probe] | str = "quick",
    options: ElicitOptions | None = None,
    run: RunOptions | None = None,
    out: str | os.PathLike[str] | None = None,
) -> ElicitationResults:
    """Try to extract the answers from an unlearned model, with `retain` and `full` as controls.

    Args:
        model: The unlearned model, as a directory, Hub id, transformers model or `TransformerBridge`.
        examples: The forget set, in any form that `load_examples` accepts, or an `ElicitData`, which can add a `limit`,
            retained facts for in-context examples, and holdout questions.
        retain: Model that never saw the forget set. Without it, scores cannot be compared with what a model says by
            chance; `control_frame` then offers a weaker control, the references of other subjects.
        full: Model trained on all data. Without it, power and share are undefined.
        probes: List of names (such as `"mask+icl+aoa"`) or probe objects, or the name of a preset ("quick",
            "black_box", "paper").
        options: Settings for asking the models; default `ElicitOptions()`.
        run: Device and memory settings; default `RunOptions()`.
        out: Directory for finished parts, from which an interrupted run resumes.

    Returns:
        Texts and scores.

    Raises:
        ConfigError: A probe is unknown, or two probes have the same name.
        DataError: There are no examples, or some ids are not unique.
        ModelError: A checkpoint cannot be opened, or the model outputs NaN.
        StorageError: `out` is not writable.
        MissingDependencyError: The package rouge-score is not installed.
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> found = ul.elicitation.elicit(
        ...     world.retain, world.examples[:6], retain=world.retain, full=world.full,
        ...     probes=["plain", "cloze"], options=ul.elicitation.ElicitOptions(samples=0, max_new_tokens=8),
        ... )
        >>> found.summary()[["probe", "beyond_retain"]].to_dict("split")["data"]
        [['plain', 0.0], ['cloze', 0.0], ['any probe', 0.0]]
    """
    options = as_settings(ElicitOptions, options, name="options")
    run = as_settings(RunOptions, run, name="run")
    if run.stream is True:
        raise ConfigError(
            Setting("stream", True, of="RunOptions"),
            " is not supported here: generating text would load the whole model again for every token.",
        )
    require_package("rouge_score", needed_by="scoring texts needs")
    data = examples if isinstance(examples, ElicitData) else ElicitData(forget=examples)  # type: ignore[arg-type]
    rows, holdout = (data.sample(some, seed=options.seed) for some in (data.forget, data.holdout))
    chosen = chosen_probes(probes)
    folder = None if out is None else parts_folder(out)
    sources = {role: source for role, source in (("retain", retain), ("full", full)) if source is not None}
    sources["unlearned"] = model
    infos = {role: read_checkpoint_info(s, **where_of(run)) for role, s in sources.items()}
    tokenizer = check_compatible({role: infos[role] for role in ("full", "retain", "unlearned") if role in infos})
    deciding = {**infos, "model": infos["unlearned"]}
    protocol: Protocol = protocol_of(options.protocol, deciding, tokenizer)
    recorded = deciding_record(deciding) is not None
    announce_protocol(options.protocol, protocol, recorded, tokenizer=tokenizer, chat=options.chat)
    window = longest_text(infos["unlearned"].config)
    room = None if window is None else window - options.max_new_tokens
    asked, aside = (
        [
            ask_rows(
                probe, some, tokenizer, pool=pool, retain=data.retain, protocol=protocol, room=room, options=options
            )
            for probe in chosen
        ]
        for some, pool in ((rows, data.forget), (holdout, data.holdout))
    )
    parts: list[Part] = []
    records: dict[str, ModelRecord] = {}
    ways: list[str] = []
    for role, source in sources.items():
        twin = _same_object(role, source, sources)
        if twin is not None and not (role == "unlearned" and holdout):
            records[role] = records[twin]
            parts += [dataclasses.replace(part, role=role) for part in parts if part.role == twin]
            continue
        with _opened(source, options, run, tokenizer) as opened:
            asker = _Asker(opened, options, protocol, run, folder)
            records[role] = ModelRecord.of(opened)
            ways.append(f"texts generated {growing_way(opened)}")
            for probe in asked:
                parts += asker.parts(role, probe)
            for probe in aside if role == "unlearned" and holdout else ():
                parts += asker.parts(HOLDOUT, probe)
    prompts = [ask for probe in asked for ask in probe.asks]
    return ElicitationResults(
        options=options,
        protocol=protocol,
        models={role: records[role] for role in ("full", "retain", "unlearned") if role in records},
        examples=tuple(rows),
        probes=tuple(probe.record for probe in asked),
        parts=tuple(parts),
        holdout=tuple(holdout),
        provenance={"sample": data.sample_record(seed=options.seed)}
        | provenance(
            engine="generation",
            device=run.device,
            rows=", ".join(dict.fromkeys(ways)),
            rendered_prompt=prompts[0].rendered.text if prompts else None,
            ids_hash=part_key("", "", "greedy", [ask.key for ask in prompts], options),
        ),
    )


@dataclass(frozen=True)
class _Asker:
    """Asks an open model, or reads the parts that an interrupted run finished."""

    model: HookedModel
    options: ElicitOptions
    protocol: Protocol
    run: RunOptions
    folder: Path | None

    def parts(self, role: str, asked: Asked) -> list[Part]:
        """Return one part per decoding of a probe."""
        parts = []
        inputs = ((ask.rendered.prompt.question, ask.rendered.ids) for ask in asked.asks)
        require_embedded(self.model.hf, inputs, name=self.model.name)
        ends = answer_end_ids(self.model, protocol=self.protocol, chat=self.options.chat)
        for decoding in self.options.decodings if asked.probe.samples_too else ("greedy",):
            name = asked.probe.name if isinstance(asked.probe, ByPrompt) else repr(asked.probe)
            if not type(asked.probe).__module__.startswith("uds_lens."):
                name += program_digest(type(asked.probe))  # an edited probe is treated as a different probe
            keys = [ask.key for ask in asked.asks]
            key = part_key(self.model.fingerprint, name, decoding, keys, self.options, ends=ends)
            file = None if self.folder is None else self.folder / f"{key}.json"
            part = None
            if file is not None and file.is_file():
                with suppress(ResultFormatError):  # recompute a corrupted part
                    part = read_part(file, key=key)
            if part is None:
                part = self._ask(role, asked, decoding, ends)
                if file is not None:
                    write_part(part, file, key=key)
            parts.append(dataclasses.replace(part, role=role))
        return parts

    def _ask(self, role: str, asked: Asked, decoding: Decoding, ends: frozenset[int]) -> Part:
        began = time.perf_counter()
        asking = Asking(
            decoding=decoding,
            options=self.options,
            protocol=self.protocol,
            ends=ends,
            desc=f"{role}: {asked.probe.name}, {decoding}",
            show=self.run.progress,
        )
        prompts, texts, details, prefilled = asked.probe.answer(self.model, asked.asks, asking)
        responses = tuple(
            Response(row=ask.row, prompt=prompt, reference=ask.rendered.prompt.reference, texts=text, details=more)
            for ask, prompt, text, more in zip(asked.asks, prompts, texts, details, strict=True)
        )
        return Part(
            role=role,
            probe=asked.probe.name,
            decoding=decoding,
            responses=responses,
            prefilled=prefilled,
            seconds=time.perf_counter() - began,
        )


def _same_object(role: str, source: ModelSource, sources: Mapping[str, ModelSource]) -> str | None:
    """Return an earlier role that uses the same source, if any."""
    for other, given in sources.items():
        if other == role:
            return None
        if given is source or (isinstance(source, str | os.PathLike) and str(given) == str(source)):
            return other
    return None


def _opened(source: ModelSource, options: ElicitOptions, run: RunOptions, tokenizer: Any) -> Any:
    if isinstance(source, HookedModel):
        return source.held()
    return open_to_measure(source, dtype=options.dtype, run=run, tokenizer=tokenizer)


_OF_INSIDES = {"gcg": GCG, "softgcg": SoftGCG, "actpert": ActPert}  # probes that need gradients or activations


def chosen_probes(probes: Sequence[str | PromptProbe | Probe] | str) -> list[Probe]:
    """Resolve names and presets to probes, and add each probe's controls."""
    if isinstance(probes, str):
        if probes not in PRESETS:
            raise ConfigError(
                f"no preset {probes!r}; choose from {', '.join(PRESETS)}. Pass a single probe as a list: [{probes!r}]."
            )
        probes = PRESETS[probes]
    if not isinstance(probes, Iterable):
        raise ConfigError(Setting("probes"), f" must be a list of names, or a preset; got {shown(probes)}.")
    given: list[Any] = []
    for probe in probes:
        if isinstance(probe, str):
            word, bracket, settings = probe.partition("(")
            if word in _OF_INSIDES:
                kind = _OF_INSIDES[word]
                probe = with_settings(kind, settings.removesuffix(")")) if bracket else kind()
            else:
                probe = find_probe(probe)
        elif not isinstance(probe, Probe | PromptProbe):
            raise ConfigError(Setting("probes"), f" must hold names or probe objects; got {shown(probe)}.")
        given.append(probe)
    chosen: list[Probe] = []
    for probe in given:
        chosen.append(probe if isinstance(probe, Probe) else ByPrompt(probe))
        chosen += [control for control in getattr(probe, "controls", ()) if control not in given]
    if not chosen:
        raise ConfigError(f"no probes were given: pass a list of names, or a preset ({', '.join(PRESETS)}).")
    names = [probe.name for probe in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two probes have the name {twice!r}: give each probe a unique name.")
    return chosen


def check_out(
    out: str | os.PathLike[str],
    data: ElicitData,
    *,
    models: Mapping[str, str | None],
    probes: Sequence[str | PromptProbe | Probe] | str,
    options: ElicitOptions,
    run: RunOptions,
    redo: bool = False,
) -> Path:
    """Return the path for a result if the path is free or holds a result of the same run."""
    place = check_writable(out, directory=True, format=KIND.format)
    wanted = [probe.name for probe in chosen_probes(probes)]
    if redo or not (place / "manifest.json").is_file():
        return place
    try:
        earlier = ElicitationResults.load(place)
    except ResultFormatError:  # replace a corrupted result
        return place
    given = {role: name for role, name in models.items() if name is not None}
    same = {
        "models": given.keys() == earlier.models.keys()
        and all(
            fingerprint_of(name, dtype=options.dtype, run=run) == earlier.models[role].fingerprint
            for role, name in given.items()
        ),
        "examples": (list(earlier.examples), list(earlier.holdout))
        == tuple(list(data.sample(rows, seed=options.seed)) for rows in (data.forget, data.holdout)),
        "probes": [probe.name for probe in earlier.probes] == wanted,
        "options": earlier.options == options,
    }
    differing = [name for name, equal in same.items() if not equal]
    if differing:
        name = earlier.models["unlearned"].name
        refuse_to_replace(place, f"an elicitation of {name!r} with different {' and '.join(differing)}")
    return place
