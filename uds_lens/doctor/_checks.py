"""Check an installation, a machine, models and data before an audit, without loading any weights.

It also compares an audit in memory with a streamed one: the memory each needs, the bytes the streamed one reads, and
how long it would take on this machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uds_lens._optional_packages import EXTRA_OF, distribution_of, install_command
from uds_lens._progress import duration
from uds_lens._storage.weights import weight_files
from uds_lens.errors import IncompatibleModelsError, ModelError, Setting, UdsLensError, UdsLensWarning
from uds_lens.results import AuditConfig, RunOptions

if TYPE_CHECKING:
    from uds_lens.audit._inputs import Plan
    from uds_lens.data import ForgetExample
    from uds_lens.models import CheckpointInfo


Verdict: TypeAlias = Literal["ok", "note", "problem"]
"""In this order: all is well, there is something to know, or something will not work."""


@dataclass(frozen=True)
class Finding:
    """One check: its subject, its outcome, and how to fix it."""

    what: str
    """The subject: a package, a device, a model."""

    verdict: Verdict
    """The outcome."""

    found: str
    """The outcome in words."""

    fix: str | None = None
    """Advice; None if there is nothing to fix."""


# The installation and the machine.

_CORE = ("torch", "transformers", "transformer-lens")
_FOR = {
    "gguf": "GGUF files as models",
    "bitsandbytes": "4-bit models: quantise, and audits of quantised models",
    "peft": "LoRA: adapters as models, finetune --lora, unlearn --lora, relearn --lora",
    "rouge_score": "elicit; ROUGE and model utility in metrics",
    "sklearn": "membership attacks and the linear probe in metrics",
    "lm_eval": "lm-evaluation-harness tasks in metrics",
    "kaleido": "figures as PNG, SVG and PDF",
    "spacy": "annotate --by names",
    "submitit": "sweep --slurm",
    "trackio": "unlearn --log-to trackio",
    "wandb": "unlearn --log-to wandb",
}
"""Optional packages by import name, with what they are needed for."""

_GIB = 2**30
_LITTLE = 2.0  # GiB of free memory or disk space below which a note is given


def examine_environment(*, place: str | os.PathLike[str] = ".") -> list[Finding]:
    """Check this installation and this machine, without network access.

    Args:
        place: Directory to which results would be written.

    Returns:
        Findings on packages, devices, memory, disks and access to the Hub.

    Example:
        >>> [finding.what for finding in examine_environment()][:2]
        ['uds-lens', 'python']
    """
    return [*_packages(), *_devices(), *_room(Path(place)), *_hub()]


def _packages() -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet

    yield Finding("uds-lens", "ok", f"{_installed('uds-lens') or 'run from source'}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    wanted = _wanted()
    for module in (*_CORE, *_FOR):
        name = distribution_of(module)
        installed, bounds = _installed(name), wanted.get(name, "")
        needed = f" (for {_FOR[module]})" if module in _FOR else ""
        pip = install_command(f"{name}{bounds}")
        if installed is None:
            verdict: Verdict = "note" if module in _FOR else "problem"
            yield Finding(
                name,
                verdict,
                f"not installed{needed}",
                install_command(f"uds-lens[{EXTRA_OF[module]}]") if module in _FOR else pip,
            )
        elif bounds and not SpecifierSet(bounds).contains(installed, prereleases=True):
            yield Finding(
                name,
                "problem",
                f"{installed}, expected {bounds}",
                f"{pip}, in a separate environment if another project needs {installed}",
            )
        else:
            yield Finding(name, "ok", f"{installed}{needed}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _wanted() -> dict[str, str]:
    """Return the version bounds that this package declares for each of its dependencies."""
    from packaging.requirements import Requirement

    try:
        lines = distribution("uds-lens").requires or []
    except PackageNotFoundError:
        return {}
    return {requirement.name: str(requirement.specifier) for requirement in map(Requirement, lines)}


def _devices() -> Iterator[Finding]:
    import psutil
    import torch

    from uds_lens.models._hooked import pick_device
    from uds_lens.patching._costs import BFLOAT16_COSTS, bfloat16_gain

    yield Finding("CPU", "ok", f"{os.cpu_count()} cores; torch uses {torch.get_num_threads()} threads")
    memory = psutil.virtual_memory()
    yield _gib("memory", memory.available, memory.total, "close other programs, or audit a smaller model")
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        yield _gib(f"cuda:{number} {name}", free, total, "run nvidia-smi to see which processes use this GPU")
    if torch.cuda.device_count() == 0:
        yield Finding(
            "GPU", "note", "none usable by torch", "audits run on the CPU, which is slower but gives the same results"
        )
    if (gain := bfloat16_gain(pick_device("auto"))) is not None:
        yield Finding("speed", "note", gain, f"--dtype bfloat16 is enough for a first look ({BFLOAT16_COSTS})")


def _room(place: Path) -> Iterator[Finding]:
    for what, folder in (("results", place), ("temporary files", Path(tempfile.gettempdir()))):
        folder = folder.expanduser().absolute()
        while not folder.exists():
            folder = folder.parent
        if not os.access(folder, os.W_OK):
            yield Finding(what, "problem", f"{folder} cannot be written to", "choose another directory")
            continue
        disk = shutil.disk_usage(folder)
        yield _gib(
            f"{what} in {folder}",
            disk.free,
            disk.total,
            "free some space, or choose another directory" + (" with TMPDIR" if what != "results" else ""),
        )


def _gib(what: str, free: int, total: int, fix: str) -> Finding:
    little = free / _GIB < _LITTLE
    return Finding(
        what, "note" if little else "ok", f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free", fix if little else None
    )


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    names, yes = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), ("1", "ON", "YES", "TRUE")
    offline = [name for name in names if os.environ.get(name, "").upper() in yes]
    if offline:
        yield Finding("Hub", "note", f"offline ({' and '.join(offline)} set): only local files are used")
    else:
        yield Finding("Hub", "ok", "online: missing models and data are downloaded (--offline prevents this)")
    cache = Path(constants.HF_HUB_CACHE)
    yield Finding("Hub cache", "ok", f"{cache}{'' if cache.is_dir() else ' (does not exist yet)'}")


# Models and a forget set.

_LONGEST = 200  # maximum number of characters quoted from another package's error
_LONGEST_OF_OURS = 1000  # larger for this package's errors, which end with advice


def examine_inputs(
    models: Mapping[str, str],
    examples: str | None = None,
    *,
    control: str | None = None,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> list[Finding]:
    """Check models and a forget set as an audit would, without loading weights.

    Args:
        models: Directories or Hub ids by role, `full` first; several models with the same role are numbered (`retain
            1`, `retain 2` ...).
        examples: Anything that `load_examples` reads; None checks only the models.
        control: Facts that should be retained, in the same forms as `examples`.
        config: Settings of the audit; default `AuditConfig()`.
        options: How the audit would run; default `RunOptions()`.

    Returns:
        Findings on each model, their compatibility, the tokenizer and its chat template, the examples and their
        entities, and the memory that an audit needs.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> any(finding.verdict == "problem" for finding in examine_inputs({"full": str(world.full)}))
        False
    """
    config, options = config or AuditConfig(), options or RunOptions()
    findings: list[Finding] = []
    infos: dict[str, CheckpointInfo] = {}
    for role, model in models.items():
        findings += _model(role, model, options, infos)
    if infos:
        findings += _together(infos)
        findings += _same_checkpoint({role: models[role] for role in infos})
        findings += _speed(config, options)
    rows: list[ForgetExample] = []
    facts: list[ForgetExample] = []
    for what, place, read in (("examples", examples, rows), ("control", control, facts)):
        if place is not None:
            findings.append(_data(what, place, read))
    if rows:
        findings += _fatal_rows(rows, facts, config)
    if rows and "full" in infos:
        findings += _entities({role: models[role] for role in infos}, rows, facts, config, options)
    return findings


def _model(role: str, model: str, options: RunOptions, infos: dict[str, CheckpointInfo]) -> Iterator[Finding]:
    from uds_lens.audit._inputs import where_of
    from uds_lens.models import read_checkpoint_info
    from uds_lens.models._checkpoint import checkpoint_folders

    try:
        info = read_checkpoint_info(model, **where_of(options))
        folders = [Path(folder).expanduser() for folder in checkpoint_folders(model)]
    except UdsLensError as error:
        yield Finding(role, "problem", _short(error))
        return
    infos[role] = info
    architecture, *sizes = (info.shape[name] for name in ("architecture", "depth (layers)", "width (d_model)"))
    stored = "" if info.storage is None else f", stored as {info.storage}"
    yield Finding(role, "ok", f"{model}: {architecture}, {sizes[0]} layers, width {sizes[1]}{stored}")
    for folder in filter(Path.is_dir, folders):
        yield from _weights(f"{role} weights", folder)


def _weights(what: str, folder: Path) -> Iterator[Finding]:
    """Report pickled weights, weights that would run code, and truncated or conflicting files."""
    from safetensors import SafetensorError, safe_open

    try:
        files = weight_files(folder, str(folder), of_adapter=(folder / "adapter_config.json").is_file())
    except ModelError as error:
        yield Finding(what, "problem", _short(error))
        return
    if not files:
        yield Finding(what, "problem", f"{folder} contains no weights", "expected model*.safetensors in this directory")
    for file in files:
        if file.suffix != ".safetensors":
            yield _pickled(what, file)
            continue
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            yield Finding(what, "problem", f"{file.name} cannot be read: {error}", "download or save this file again")


def _pickled(what: str, file: Path) -> Finding:
    import torch

    fix = "use a checkpoint with *.safetensors (save_pretrained writes them)"
    try:
        torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # a corrupt or hostile pickle can raise anything
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Finding(
            what, "problem", f"{file.name} contains more than tensors, or is corrupt: {first[:_LONGEST]}", fix
        )
    return Finding(what, "note", f"{file.name} is pickled; only its tensors are read", fix)


def _together(infos: Mapping[str, CheckpointInfo]) -> Iterator[Finding]:
    from uds_lens.models._compatibility import check_compatible

    try:
        tokenizer = check_compatible(infos)
    except UdsLensError as error:
        yield Finding("together", "problem", _short(error), "choose models from one family with the same tokenizer")
        return
    if len(infos) > 1:
        yield Finding("together", "ok", f"{', '.join(infos)} are compatible")
    yield Finding("tokenizer", "ok", f"{type(tokenizer).__name__}, {len(tokenizer)} tokens")
    if getattr(tokenizer, "chat_template", None):
        yield Finding("chat template", "ok", "found: --protocol chat works")
    else:
        yield Finding("chat template", "note", "none: only --protocol raw works")


def _same_checkpoint(models: Mapping[str, str]) -> Iterator[Finding]:
    """Report checkpoints used in several roles; if `full` and `retain` are the same, scores have no scale."""
    from uds_lens.models._checkpoint import checkpoint_folders

    places = {
        role: tuple(os.path.realpath(f) if os.path.exists(f) else str(f) for f in checkpoint_folders(model))
        for role, model in models.items()
    }
    roles: dict[tuple[str, ...], list[str]] = {}
    for role, place in places.items():
        roles.setdefault(place, []).append(role)
    fatal = "pass a model that never saw the forget set as retain; otherwise, the audit will have a fatal warning"
    for same in roles.values():
        if len(same) > 1:
            both = "full" in same and any(_is_retain(role) for role in same)
            yield Finding(
                "roles",
                "problem" if both else "note",
                f"{' and '.join(same)} are the same checkpoint, {models[same[0]]}",
                fatal if both else _known(same),
            )


def _is_retain(role: str) -> bool:
    return role.startswith("retain")


def _known(same: Sequence[str]) -> str:
    """Return advice for a checkpoint that fills these roles."""
    if all(map(_is_retain, same)):
        return "pass retain models that were trained with different seeds"
    return (
        "the score of this model is known in advance"
        if any(not role.startswith("unlearned") for role in same)
        else "pass this model only once"
    )


_SLOWER = 4.0
"""A note is given if the requested dtype is more than this many times slower than float32."""


def _speed(config: AuditConfig, options: RunOptions) -> Iterator[Finding]:
    """Time matrix products in the requested dtype and in float32, because not every CPU has bfloat16 instructions."""
    from uds_lens.models._hooked import pick_device
    from uds_lens.patching._costs import product_rate

    device = pick_device(options.device)
    if config.dtype == "float32":
        return
    factor = product_rate("float32", device) / product_rate(config.dtype, device)
    words = f"a matrix product in {config.dtype} takes {factor:.1f} times as long as in float32 on {device}"
    if factor > _SLOWER:
        yield Finding("speed", "note", words, "--dtype float32 is faster on this device, and exact")
    else:
        yield Finding("speed", "ok", words)


def _data(what: str, place: str, rows: list[ForgetExample]) -> Finding:
    from uds_lens.data import load_examples

    try:
        rows += load_examples(place)
    except UdsLensError as error:
        return Finding(what, "problem", _short(error))
    return Finding(what, "ok", f"{place}: {len(rows)} rows")


def _fatal_rows(
    rows: Sequence[ForgetExample], facts: Sequence[ForgetExample], config: AuditConfig
) -> Iterator[Finding]:
    """Report data that an audit would refuse, and samples for which it would withhold its verdict."""
    from uds_lens.audit._inputs import audit_inputs
    from uds_lens.results._cautions import about_first_rows

    if not any((row.entity or "").strip() for row in rows):
        return  # reported with the entities
    try:
        inputs = audit_inputs(rows, facts or None, config)
    except UdsLensError as error:
        yield Finding("data", "problem", _short(error))
        return
    sample = inputs.forget.sample
    if sample is not None and sample.get("sorted_by") is not None:
        yield Finding(
            "sample",
            "problem",
            f"only the first {sample['limit']} of {sample['of']}. {about_first_rows(sample['sorted_by'])}",
            "an audit of these rows would have a fatal warning: omit --sample first",
        )


def _entities(
    models: Mapping[str, str],
    rows: list[ForgetExample],
    facts: list[ForgetExample],
    config: AuditConfig,
    options: RunOptions,
) -> Iterator[Finding]:
    from uds_lens.audit._inputs import make_plan
    from uds_lens.data._examples import given_away
    from uds_lens.data._prompts import spaces_added

    full = models["full"]
    retained = facts or None
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UdsLensWarning)
            try:
                plan = make_plan(models, rows, control=retained, config=config, options=options)
            except IncompatibleModelsError:  # reported above
                plan = make_plan({"full": full}, rows, control=retained, config=config, options=options)
    except UdsLensError as error:
        yield Finding("entities", "problem", _short(error))
        return
    usable, skipped = len(plan.encoded.rows), plan.encoded.skipped
    reasons = Counter(row.reason for row in skipped).most_common(3)
    words = f"found in {usable} of {len(rows)} answers"
    if not usable:
        yield Finding(
            "entities",
            "problem",
            f"{words}; {reasons[0][0]}",
            "give each row an `entity` that occurs in its `answer` (see the page 'Audit your checkpoints')",
        )
        return
    yield Finding("prompts", "ok", plan.prompts)
    for warning in heard:
        if isinstance(warning.message, UdsLensWarning) and "was trained with" in str(warning.message):
            yield Finding("prompts", "note", warning.message.worded(_as_option))
    left = "; ".join(f"{reason} ({count})" for reason, count in reasons)
    yield Finding("entities", "note" if skipped else "ok", f"{words}{f'; skipped: {left}' if left else ''}")
    if copied := sum(given_away(row.example) for row in plan.encoded.rows):
        words = f"{copied} already occur in the question or earlier in the answer, so a model can copy them"
        yield Finding("entities", "note", words, "choose other words as entities, or leave these rows out")
    if quoted := spaces_added((row.example for row in plan.encoded.rows), config.entity_space):
        some = ", ".join(quoted[:6]) + (", ..." if len(quoted) > 6 else "")
        fix = "use --entity-space answer, unless you want to reproduce the paper's numbers"
        words = f"{len(quoted)} directly follow a quotation mark (or similar), where prompts would add a space: {some}"
        yield Finding("entities", "note", words, fix)
    if plan.control is not None:
        found, left_out = len(plan.control.rows), len(plan.control.skipped)
        words = f"entities found in {found} of {found + left_out} answers"
        yield Finding("control", "note" if left_out else "ok", words)
    yield from ways_to_run(models, plan, config=config, options=options)


def _short(error: UdsLensError) -> str:
    text = " ".join(error.worded(_as_option).split())
    return text if len(text) <= _LONGEST_OF_OURS else f"{text[:_LONGEST_OF_OURS]} ..."


def _as_option(setting: Setting) -> str:
    """Write a setting as a command-line option."""
    flag = f"--{setting.name.replace('_', '-')}"
    return f"{flag} {setting.value}" if setting.has_value and not isinstance(setting.value, bool) else flag


_TRIED = 1 << 26
"""Number of bytes read from a file to measure the speed of its disk."""


def ways_to_run(
    models: Mapping[str, str], plan: Plan, *, config: AuditConfig, options: RunOptions
) -> Iterator[Finding]:
    """Compare an audit in memory with a streamed one."""
    from uds_lens.audit._memory import memory_of_audit
    from uds_lens.patching._side_by_side import why_not_streamed

    full = models["full"]
    sizes: dict[str, Any] = {"n_sources": max(1, len(models) - 1), "config": config, "options": options}
    try:
        whole = memory_of_audit(full, plan, **sizes)
    except ModelError as error:  # an architecture that cannot be audited
        yield Finding("audit", "problem", _short(error))
        return
    if whole is None:
        yield Finding("audit", "note", "memory not estimated")
        return
    by_block = memory_of_audit(full, plan, streamed=True, **sizes)
    assert by_block is not None
    reasons = (why_not_streamed(m, revision=options.revision, offline=options.offline) for m in models.values())
    why = next((reason for reason in reasons if reason is not None), None)
    if whole.fits:
        yield Finding("audit", "ok", str(whole))
    elif why is None and by_block.fits:
        yield Finding("audit", "note", str(whole), "no action needed: models are streamed, as described below")
    else:
        yield Finding(
            "audit",
            "problem",
            str(whole),
            "try --dtype bfloat16, a lower --token-budget, --device-map auto, or another device",
        )
    if why is not None:
        yield Finding("audit, streamed", "note", f"not possible: {why}")
        return
    alone = memory_of_audit(full, plan, streamed=True, **{**sizes, "n_sources": 0})
    assert alone is not None
    turns = {role: max(1, len((by_block if role == "full" else alone).parts)) for role in models}
    costs = _costs(models, turns, plan, config, options)
    yield Finding("audit, streamed", "ok" if by_block.fits else "note", f"{by_block}; {costs}")


def _costs(
    models: Mapping[str, str], turns: Mapping[str, int], plan: Plan, config: AuditConfig, options: RunOptions
) -> str:
    """Estimate how much is read, and how long reading and computing take on this disk and device.

    `turns` gives the number of times each model is read: once for each group of rows.
    """
    from uds_lens.models._by_block import weight_files_of
    from uds_lens.models._hooked import pick_device
    from uds_lens.patching._costs import product_rate

    files = {
        role: weight_files_of(model, revision=options.revision, offline=options.offline)
        for role, model in models.items()
    }
    sizes = {file: file.stat().st_size for part in files.values() for file in part}
    stored = sum(turns[role] * sum(map(sizes.__getitem__, part)) for role, part in files.items())
    reading = stored / disk_rate(max(sizes, key=sizes.__getitem__))
    floats, products = _work(models["full"], plan, len(models)), product_rate(config.dtype, pick_device(options.device))
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    often = "once"
    if max(turns.values()) > 1:
        often = "once for each group of rows: " + ", ".join(f"{role} {n}" for role, n in turns.items())
    return (
        f"reads {stored / 1e9:.2f} GB, each weight of {count} {often}: about {duration(reading)} at this disk's rate; "
        f"the matrix products take about {duration(floats / products)} on this device ({products / 1e9:.0f} GFLOP/s)"
    )


def _work(full: str, plan: Plan, n_models: int) -> float:
    """Count floating-point operations: two per weight and token, for rows in each model and variants in `full`."""
    from uds_lens.audit._memory import weight_sizes
    from uds_lens.models._checkpoint import load_config

    config = load_config(full, revision=None, offline=True, trust_remote_code=False)
    layers = config.get_text_config().num_hidden_layers
    tokens, windows = sum(plan.lengths), sum(len(row.window) for row in plan.rows)
    variants = max(1, n_models - 1) * windows * (layers - 1) / 2
    return 2.0 * weight_sizes(config, 1).whole * (n_models * tokens + variants)


def disk_rate(file: Path) -> float:
    """Measure a disk's read speed in bytes per second, bypassing the page cache where the system allows it."""
    with open(file, "rb", buffering=0) as opened:
        length = min(_TRIED, os.fstat(opened.fileno()).st_size)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(opened.fileno(), 0, length, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        opened.read(length)
        return length / max(time.perf_counter() - start, 1e-6)
