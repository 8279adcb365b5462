"""What an audit says on a model's page on the Hub: a section of the model card, and the score in its metadata."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens._compat.transformers import is_offline
from uds_lens.errors import (
    ConfigError,
    ResultFormatError,
    Setting,
    StorageError,
    UdsLensError,
)
from uds_lens.results._depth_audit import number

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

    from uds_lens.results._depth_audit import AuditScores, DepthAudit


ADDRESS = "https://github.com/uds-lens/uds-lens"
"""The project, named as the source of the number."""

METRIC = "unlearning_depth_score"
"""The metric's identifier in the metadata."""

_BEGIN, _END = "<!-- uds_lens: unlearning depth -->", "<!-- uds_lens: end -->"
_SECTION = re.compile(rf"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", re.DOTALL)
_SETTINGS = (
    *("tau", "site", "scope", "last_layer", "protocol", "dtype", "stand_in"),
    *("limit", "sample", "seed"),
)


def model_card(
    audit: AuditScores, *, dataset: str = "forget set", config: str | None = None, card: str | None = None
) -> ModelCard:
    """A model card that tells an audit: score, interval, what to be careful about, how it was measured.

    The score also stands in the card's metadata (`model-index`), where the Hub looks for evaluation results. An audit
    without a score, or with a fatal warning, is told in the text only.

    Args:
        audit: What is told.
        dataset: The forget set: its id on the Hub, such as "locuslab/TOFU", or a name.
        config: Its configuration, such as "forget10".
        card: The text of a card that is there already: an earlier section about depth is replaced in it, and all else
            is kept. None begins a new card.

    Returns:
        The card; `str(card)` is the text of `README.md`, `card.save(path)` writes it.

    Raises:
        ResultFormatError: `card` has metadata that cannot be read.

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

    if not dataset.strip():
        raise ConfigError(Setting("dataset"), " must name the forget set; got an empty text.")
    name = shared_name(audit.models["unlearned"].name)
    if card is None:
        begun = ModelCard(f"---\n{ModelCardData(tags=['unlearning']).to_yaml()}\n---\n\n# {_plain(name)}\n")
    else:
        try:
            begun = ModelCard(card)
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ResultFormatError(
                f"the card's metadata cannot be read ({first[:200]}): mend the lines between --- at its top."
            ) from error
    data: Any = begun.data
    kept = [each for each in data.eval_results or [] if not _is_ours(each, dataset, config)]
    results = [*kept, *_results(audit, dataset, config)]
    data.eval_results = results or None
    if results and not data.model_name:
        data.model_name = name
    rest = _SECTION.sub("", begun.text).rstrip("\n")
    begun.text = f"{rest}\n\n{_BEGIN}\n{_section(audit, dataset, config)}\n{_END}\n"
    return begun


def shared_name(name: str) -> str:
    """A model's name as others may read it: a Hub id whole, of a path its last part.

    >>> shared_name("/home/ada/runs/npo"), shared_name("owner/model"), shared_name("runs/a/npo")
    ('npo', 'owner/model', 'npo')
    """
    parts = [part for part in re.split(r"[/\\]", name) if part]
    is_path = len(parts) != 2 or name[0] in "./~\\" or ":" in name
    return (parts[-1] if parts else name) if is_path else name


def _results(audit: AuditScores, dataset: str, config: str | None) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    if math.isnan(audit.uds) or audit.fatal:
        return []
    low, high = audit.uds_interval
    told: dict[str, Any] = {"n_measured": audit.n_measured, "n_layers": audit.n_layers}
    if not math.isnan(low):
        told |= {"confidence": audit.config.confidence, "low": round(low, 6), "high": round(high, 6)}
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Knowledge left in hidden states after unlearning",
            dataset_type=dataset,
            dataset_name=dataset if config is None else f"{dataset}, {config}",
            dataset_config=config,
            metric_type=METRIC,
            metric_name="Unlearning depth score (UDS)",
            metric_value=round(audit.uds, 6),
            metric_args={**told, **_settings(audit)},
            source_name=f"uds_lens {audit.provenance.get('versions', {}).get('uds_lens', '')}".strip(),
            source_url=ADDRESS,
        )
    ]


def _is_ours(result: EvalResult, dataset: str, config: str | None) -> bool:
    return (result.metric_type, result.dataset_type, result.dataset_config) == (METRIC, dataset, config)


def _section(audit: AuditScores, dataset: str, config: str | None) -> str:
    low, high = audit.uds_interval
    interval = ""
    if not math.isnan(low):
        confidence = f"{audit.config.confidence * 100:g} %"
        interval = f" ({confidence} interval {low:.3f} to {high:.3f}, {audit.interval_basis})"
    rows = [
        ("forget set", _plain(dataset if config is None else f"{dataset}, {config}")),
        ("measured", f"{audit.n_measured} of {len(audit.examples) + len(audit.skipped)} examples"),
        *(
            [("if all were measured", f"UDS {audit.sample_error.words} examples (error of the sample)")]
            if audit.sample_error is not None
            else []
        ),
        ("not measurable, skipped", f"{audit.n_not_measurable}, {len(audit.skipped)}"),
        *(
            (role, f"`{_plain(shared_name(record.name))}`, weights `{record.fingerprint}`")
            for role, record in audit.models.items()
        ),
        ("settings", ", ".join(f"{key}={_plain(str(value))}" for key, value in _settings(audit).items())),
        ("tokens", f"`{_plain(str(audit.provenance.get('ids_hash')))}`"),
        ("versions", ", ".join(f"{k} {v}" for k, v in audit.provenance.get("versions", {}).items())),
    ]
    cautions = [
        f"- {'**Fatal.** ' if level == 'fatal' else ''}{_plain(_without_places(text, audit))}"
        for level, text in audit.cautions
    ]
    warned = ["", "Before quoting it:", "", *cautions] if cautions else []
    return "\n".join(
        [
            "## Unlearning depth",
            "",
            f"**UDS {number(audit.uds)}**{interval}: {audit.reading}.",
            "",
            "0: hidden states carry as much of the knowledge as in the model before unlearning (full); 1: as little "
            "as in a model that never saw the forget set (retain). A high score is not a good model: look at its "
            "utility.",
            *warned,
            "",
            "| | |",
            "|---|---|",
            *(f"| {title} | {value} |" for title, value in rows),
            "",
            f"Measured with [uds_lens]({ADDRESS}), an implementation of the score of Lee, Kim and Jo "
            "([arXiv 2605.24614](https://arxiv.org/abs/2605.24614)).",
        ]
    )


def _without_places(text: str, audit: AuditScores) -> str:
    """A warning that names models by their last part, as the rest of the card does."""
    records = [*audit.models.values(), *(retain.model for retain in audit.retains)]
    for name in sorted({record.name for record in records}, key=len, reverse=True):
        text = text.replace(name, shared_name(name))
    return text


def _settings(audit: AuditScores) -> dict[str, Any]:
    """Settings that change what is measured."""
    found = audit.config.to_dict()
    return {name: found[name] for name in _SETTINGS if found.get(name) is not None}


def _plain(text: str) -> str:
    """A text from outside that is no markup in a table of Markdown."""
    text = " ".join(text.split())
    return re.sub(r"[<>|`\[\]]", lambda found: f"&#{ord(found[0])};", text)


# An audit on a model's page on the Hub: its files, and the section of the card that tells it, in one
# commit.

FOLDER = "uds_lens"
"""Where the files go in the repository."""


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
    """See `DepthAudit.push_to_hub`."""
    from huggingface_hub import CommitOperationAdd, HfApi

    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ConfigError(f"a repository on the Hub is named owner/name; got {repo[:80]!r}.")
    if is_offline():
        raise StorageError(
            f"cannot push to {repo!r}: HF_HUB_OFFLINE is set. Unset it where there is a network."
        )
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as place:
        saved = Path(place) / "audit"
        audit.save(saved)
        files = {path.name: path.read_bytes() for path in sorted(saved.iterdir())}
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        card = model_card(audit, dataset=dataset, config=config, card=_card_of(api, repo, revision))
        contents = {"README.md": str(card).encode(), **{f"{FOLDER}/{n}": data for n, data in files.items()}}
        commit = api.create_commit(
            repo,
            operations=[CommitOperationAdd(name, data) for name, data in contents.items()],
            commit_message="Unlearning depth, measured with uds_lens",
            revision=revision,
        )
    except UdsLensError:
        raise
    except Exception as error:  # what the Hub answers, and what keeps us from asking it
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StorageError(
            f"cannot push to {repo!r}: {first[:250]} Log in with `hf auth login`, or pass a token that may write there."
        ) from error
    return str(commit.commit_url)


def _card_of(api: Any, repo: str, revision: str | None) -> str | None:
    """The card that is there; None where there is none."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(api.hf_hub_download(repo, "README.md", revision=revision)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return None
