"""Publish an audit in a model's Hub repository: a section and metadata in the model card, and the files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._compat.transformers import is_offline
from uds_lens._quoting import markdown, printable
from uds_lens._storage.files import SpillFolder
from uds_lens.errors import ConfigError, ResultFormatError, Setting, StorageError, UdsLensError
from uds_lens.results._cards import number

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

    from uds_lens.results._depth_audit import DepthAudit


ADDRESS = "https://github.com/uds-lens/uds-lens"  # the project, cited as the source of the score
METRIC = "unlearning_depth_score"  # the metric's identifier in the metadata
FOLDER = "uds_lens"  # folder for the files in the repository

_BEGIN, _END = "<!-- uds_lens: unlearning depth -->", "<!-- uds_lens: end -->"
_HEADING = "## Unlearning depth"
_SECTION = re.compile(  # without the heading, a begin mark belongs to the user, as does all text outside the marks
    rf"{re.escape(_BEGIN)}\r?\n{_HEADING}\r?\n(?:(?!{re.escape(_BEGIN)}).)*?{re.escape(_END)}(?:\r?\n)?", re.DOTALL
)
_SETTINGS = (
    "tau",
    "site",
    "scope",
    "last_layer",
    "protocol",
    "dtype",
    "stand_in",
    "counterfactual",
    "draws",
    "limit",
    "sample",
    "seed",
)


def model_card(
    audit: DepthAudit, *, dataset: str = "forget set", config: str | None = None, card: str | None = None
) -> ModelCard:
    """Add an audit to a model card: score, interval, warnings, and how it was measured.

    The score is also in the card's metadata (`model-index`), where the Hub looks for evaluation results. If there is no
    score or a warning is fatal, the audit appears only in the text.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples[:4])
        >>> card = model_card(audit, dataset="toy world")
        >>> [(result.metric_name, result.metric_value) for result in card.data.eval_results]
        [('Unlearning depth score (UDS)', 1.0)]

    References:
        https://huggingface.co/docs/hub/model-cards
    """
    from huggingface_hub import ModelCard, ModelCardData

    if audit.config.words != "unlearning":
        raise ConfigError(
            Setting("words", audit.config.words, of="AuditConfig"),
            ": model cards and scores on the Hub are for unlearning only. Share the audit or its report instead.",
        )
    if not dataset.strip():
        raise ConfigError(Setting("dataset"), " must name the forget set; got an empty string.")
    dataset, config = printable(dataset), config and printable(config)
    name = printable(shared_name(audit.models["unlearned"].name))
    if card is None:
        new = ModelCard(f"---\n{ModelCardData(tags=['unlearning']).to_yaml()}\n---\n\n# {markdown(name)}\n")
    else:
        try:
            new = ModelCard(card)
        except Exception as error:
            raise ResultFormatError(
                f"the card's metadata cannot be read ({_first_line(error)}): correct the lines between --- at its top."
            ) from error
    data: Any = new.data
    ours = (METRIC, dataset, config)
    results = [
        result
        for result in data.eval_results or []
        if (result.metric_type, result.dataset_type, result.dataset_config) != ours
    ]
    if not math.isnan(audit.uds) and not audit.fatal:
        results.append(_eval_result(audit, dataset, config))
    data.eval_results = results or None
    if results and not data.model_name:
        data.model_name = name
    rest = _SECTION.sub("", new.text).rstrip("\n")
    new.text = f"{rest}\n\n{_BEGIN}\n{_section(audit, dataset, config)}\n{_END}\n"
    return new


def shared_name(name: str) -> str:
    """Return a model's name for publication: its Hub id, or the last part of its path.

    >>> shared_name("/home/ada/runs/npo"), shared_name("owner/model"), shared_name("runs/a/npo")
    ('npo', 'owner/model', 'npo')
    """
    parts = [part for part in re.split(r"[/\\]", name) if part]
    is_path = len(parts) != 2 or name[0] in "./~\\" or ":" in name
    return (parts[-1] if parts else name) if is_path else name


def _eval_result(audit: DepthAudit, dataset: str, config: str | None) -> EvalResult:
    from huggingface_hub import EvalResult

    low, high = audit.uds_interval
    details: dict[str, Any] = {"n_measured": audit.n_measured, "n_layers": audit.n_layers}
    if not math.isnan(low):
        details |= {"confidence": audit.config.confidence, "low": round(low, 6), "high": round(high, 6)}
    return EvalResult(
        task_type="text-generation",
        task_name="Knowledge left in hidden states after unlearning",
        dataset_type=dataset,
        dataset_name=dataset if config is None else f"{dataset}, {config}",
        dataset_config=config,
        metric_type=METRIC,
        metric_name="Unlearning depth score (UDS)",
        metric_value=round(audit.uds, 6),
        metric_args={**details, **_settings(audit)},
        source_name=_source(audit),
        source_url=ADDRESS,
    )


def _source(audit: DepthAudit) -> str:
    return f"uds_lens {audit.provenance.get('versions', {}).get('uds_lens', '')}".strip()


def _section(audit: DepthAudit, dataset: str, config: str | None) -> str:
    low, high = audit.uds_interval
    interval = ""
    if not math.isnan(low):
        confidence = f"{audit.config.confidence * 100:g}%"
        interval = f" ({confidence} CI {low:.3f} to {high:.3f}, {audit.interval_basis})"
    rows = [
        ("forget set", markdown(dataset if config is None else f"{dataset}, {config}")),
        ("measured", f"{audit.n_measured} of {len(audit.examples) + len(audit.skipped)} examples"),
        ("not measurable, skipped", f"{audit.n_not_measurable}, {len(audit.skipped)}"),
        *(
            (role, f"`{markdown(shared_name(m.name))}`, weights `{markdown(m.fingerprint)}`")
            for role, m in audit.models.items()
        ),
        ("settings", ", ".join(f"{key}={markdown(str(value))}" for key, value in _settings(audit).items())),
        ("tokens", f"`{markdown(str(audit.provenance.get('ids_hash')))}`"),
        ("versions", markdown(", ".join(f"{k} {v}" for k, v in audit.provenance.get("versions", {}).items()))),
    ]
    if not math.isnan(audit.output_depth):
        rows.insert(2, ("output depth", f"{number(audit.output_depth)}, a score like UDS for the unpatched answers"))
    if audit.transplant is not None:
        found = audit.transplant
        hidden = found.reason if math.isnan(found.hidden) else number(found.hidden)
        rows.insert(3, ("host depth, hidden", f"{number(found.host_depth)}, {hidden}"))
    if audit.sample_error is not None:
        rows.insert(2, ("sampling error", f"UDS {audit.sample_error.words}"))
    why = markdown(_without_paths(audit.verdict.why, audit))
    cautions = [
        f"- {'**Fatal.** ' if caution.level == 'fatal' else ''}{markdown(_without_paths(caution.text, audit))}"
        for caution in audit.cautions
    ]
    return "\n".join(
        [
            _HEADING,
            "",
            f"**UDS {number(audit.uds)}**{interval}: {audit.reading}. {why}",
            "",
            "0 = knowledge intact (hidden states as in full, the model before unlearning), 1 = erased (as in retain, a "
            "model that never saw the forget set). A high score does not make a good model: check its utility.",
            *(["", "Before quoting it:", "", *cautions] if cautions else []),
            "",
            "| | |",
            "|---|---|",
            *(f"| {title} | {value} |" for title, value in rows),
            "",
            f"Measured with [uds_lens]({ADDRESS}), an implementation of the score of Lee, Kim and Jo "
            "([arXiv 2605.24614](https://arxiv.org/abs/2605.24614)).",
        ]
    )


def _without_paths(text: str, audit: DepthAudit) -> str:
    """Shorten the models' paths in a warning to their last parts."""
    for name in sorted({record.name for record in audit.roles.values()}, key=len, reverse=True):
        text = text.replace(name, shared_name(name))
    return text


def _settings(audit: DepthAudit) -> dict[str, Any]:
    """Return the settings that change what is measured."""
    settings = audit.config.to_dict()
    return {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:250]


def push(
    audit: DepthAudit,
    repo: str,
    *,
    dataset: str,
    config: str | None,
    revision: str | None,
    private: bool | None,
    token: str | None,
) -> str:
    """Commit an audit and its card section to the Hub (see `DepthAudit.push_to_hub`)."""
    from huggingface_hub import CommitOperationAdd, HfApi

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ConfigError(f"a repository on the Hub is named owner/name; got {repo[:80]!r}.")
    if is_offline():
        raise StorageError(f"cannot push to {repo!r}: HF_HUB_OFFLINE is set. Unset HF_HUB_OFFLINE if you are online.")
    api = HfApi(token=token)
    with SpillFolder() as folder:
        audit.save(folder / "audit")
        contents = {f"{FOLDER}/{path.name}": path.read_bytes() for path in sorted((folder / "audit").iterdir())}
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        card = model_card(audit, dataset=dataset, config=config, card=_existing_card(api, repo, revision))
        contents = {"README.md": str(card).encode(), **contents}
        commit = api.create_commit(
            repo,
            operations=[CommitOperationAdd(name, content) for name, content in contents.items()],
            commit_message="Unlearning depth, measured with uds_lens",
            revision=revision,
        )
    except UdsLensError:
        raise
    except Exception as error:  # the Hub refuses the commit or cannot be reached
        raise StorageError(
            f"cannot push to {repo!r}: {_first_line(error)} Log in with `hf auth login`, or pass a token with write "
            "access."
        ) from error
    return str(commit.commit_url)


def _existing_card(api: Any, repo: str, revision: str | None) -> str | None:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(api.hf_hub_download(repo, "README.md", revision=revision)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return None
