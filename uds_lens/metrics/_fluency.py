"""Fluency scorers, which detect gibberish; Fluency is one half of Utility."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from uds_lens._compat.huggingface_hub import asking_the_hub
from uds_lens._compat.transformers import set_attention
from uds_lens.errors import ModelError, Setting
from uds_lens.metrics._catalogue import resolve
from uds_lens.metrics._options import FluencyScorer, MetricOptions
from uds_lens.models._checkpoint import LOADING


def fluency_scorer(
    options: MetricOptions, *, metrics: Iterable[str] | None = None, offline: bool = False
) -> FluencyScorer:
    """Return the scorer that metrics will use, loading its classifier immediately if it has one.

    Args:
        options: Metric settings, as for `evaluate`.
        metrics: Names, as for `evaluate`; no classifier is loaded if none of the metrics needs fluency.
        offline: Use only files that are already downloaded.

    Raises:
        ModelError: A classifier is needed but cannot be loaded.
    """
    scorer = scorer_named(options.fluency, offline=offline)
    if isinstance(scorer, HubFluency) and "fluency" in {spec.name for spec in resolve(metrics, options=options)}:
        scorer.require()
    return scorer


def scorer_named(fluency: FluencyScorer | str, *, offline: bool = False) -> FluencyScorer:
    """Return the scorer with the given name ("hub", "heuristic", or a classifier), or a given scorer unchanged."""
    return _scorer(fluency, offline) if isinstance(fluency, str) else fluency


@cache  # load each classifier only once
def _scorer(name: str, offline: bool) -> FluencyScorer:
    if name == "heuristic":
        return HeuristicFluency()
    return HubFluency(offline=offline) if name == "hub" else HubFluency(name, offline=offline)


class HubFluency:
    """A text classifier from the Hugging Face Hub; a text is fluent if its top label is one of `fluent_labels`."""

    def __init__(
        self,
        model: str = "madhurjindal/autonlp-Gibberish-Detector-492513457",
        *,
        fluent_labels: Sequence[str] = ("clean",),
        offline: bool = False,
        batch_size: int = 32,
        device: str = "cpu",
    ) -> None:
        self.model, self.fluent_labels, self.offline = model, tuple(fluent_labels), offline
        self.batch_size, self.device = batch_size, device
        self._classifier: Any = None

    @property
    def name(self) -> str:
        """Name of the scorer in results."""
        return f"{self.model} (top label {' or '.join(self.fluent_labels)})"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return 1 for each text whose top label is one of `fluent_labels`, and 0 for other or empty texts.

        Raises:
            ModelError: As for `require`.
        """
        self.require()
        filled = [i for i, text in enumerate(texts) if text.strip()]
        tops = self._classifier([texts[i] for i in filled], batch_size=self.batch_size, truncation=True)
        scores = [0.0] * len(texts)
        for i, top in zip(filled, tops, strict=True):
            scores[i] = float(top["label"] in self.fluent_labels)
        return scores

    def require(self) -> None:
        """Load the classifier if it is not loaded yet.

        Raises:
            ModelError: The classifier cannot be loaded, or has none of `fluent_labels`.
        """
        if self._classifier is not None:
            return
        from transformers import AutoConfig

        try:
            where = {"local_files_only": self.offline, "trust_remote_code": False}
            with LOADING, asking_the_hub():
                config = AutoConfig.from_pretrained(self.model, **where)
                # These imports take seconds, so they wait until the classifier's config has been found.
                from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

                set_attention(config, "eager")  # the config may request a kernel (code) from the Hub
                head = AutoModelForSequenceClassification.from_pretrained(self.model, config=config, **where)
                words = AutoTokenizer.from_pretrained(self.model, **where)
        except Exception as error:  # the Hub client has no common base class for its errors
            first = "download it while online" if self.offline else "check the connection"
            raise ModelError(
                f"the fluency classifier {self.model!r} cannot be loaded ({type(error).__name__}): {first}, pass the "
                "directory of a local copy, use ",
                Setting("fluency", "heuristic"),
                " (rules of thumb, no model), or choose metrics that do not need the classifier.",
            ) from error
        labels = set(head.config.id2label.values())
        if not labels & set(self.fluent_labels):
            raise ModelError(f"{self.model!r} has the labels {sorted(labels)}, but none of {self.fluent_labels}.")
        self._classifier = pipeline("text-classification", model=head, tokenizer=words, device=self.device)


class HeuristicFluency:
    """Rules of thumb that need no model. These rules work offline and instantly, but cannot detect word salad.

    A text is fluent if it contains a word, consists mostly of letters, digits, spaces and common punctuation, has words
    of ordinary length, and does not repeat itself (at least half of its four-word sequences are distinct). Loops,
    symbol noise and empty answers fail; grammatical nonsense passes. These rules are enough to detect a broken model,
    but not to compare good models.
    """

    name = "heuristic (rules of thumb, no model)"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return 1 or 0 for each text.

        >>> HeuristicFluency()(["The author was born in Lima.", "", "the the the the the the the", "#$%& ~~ #"])
        [1.0, 0.0, 0.0, 0.0]
        """
        return [float(_looks_like_language(text)) for text in texts]


_PUNCTUATION = ".,;:!?'\"()-%$\u2019\u201c\u201d"


def _looks_like_language(text: str) -> bool:
    words = re.findall(r"\w+", text)
    if not words:
        return False
    ordinary = sum(char.isalnum() or char.isspace() or char in _PUNCTUATION for char in text) / len(text)
    length = sum(map(len, words)) / len(words)
    runs = [tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3))]
    return ordinary >= 0.9 and 1.5 <= length <= 15 and len(set(runs)) >= 0.5 * len(runs)
