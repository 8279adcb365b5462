"""Tasks of lm-evaluation-harness as metrics: the harness asks and scores the model that is already open."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from uds_lens.errors import ConfigError
from uds_lens.metrics._declaration import USEFUL, Evidence, Meaning, Outcome, Pass, metric
from uds_lens.models import HookedModel


def harness_metric(
    task: str,
    *,
    score: str = "acc",
    meaning: Meaning = USEFUL,
    tasks: str | os.PathLike[str] | None = None,
    few_shot: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    chat: bool = False,
) -> str:
    """Declare a task of lm-evaluation-harness as a custom metric `lm_eval.TASK`, for the rest of the Python session.

    On the command line, import a file that calls this function: `--import FILE`. Without the network, the task's data
    must have been downloaded before (`HF_HUB_OFFLINE=1`).

    Args:
        task: Name of a task or group, such as "mmlu" or "wmdp".
        score: Which of the task's scores; with a filter other than "none", write "exact_match,strict-match".
        meaning: Meaning of a higher score; for WMDP, `Meaning("knowledge", "nothing left", "all known")`.
        tasks: Directory with tasks (YAML) of your own, in place of the harness's.
        few_shot: Examples before each question; None is the task's own number.
        limit: Number of questions per task, taken from the start; None asks all.
        batch_size: Rows side by side.
        chat: Put the questions into the tokenizer's chat template.

    Returns:
        Name of the metric. Its details have the standard error, the task's version and the number of questions.

    Raises:
        ConfigError: The name is taken. When the metric is measured: there is no such task or score.
        MissingDependencyError: When the metric is measured: the extra `lm-eval` is not installed.

    Example:
        >>> from uds_lens.metrics import METRICS, harness_metric, withdraw_metric
        >>> harness_metric("mmlu"), METRICS["lm_eval.mmlu"].packages
        ('lm_eval.mmlu', ('lm_eval',))
        >>> withdraw_metric("lm_eval.mmlu")
    """
    asked: dict[str, Any] = {
        "few_shot": few_shot,
        "limit": limit,
        "chat": chat,
        "tasks": None if tasks is None else os.fspath(tasks),
    }
    measure = partial(run_task, task=task, batch_size=batch_size, **asked)
    own = Pass("model", "own", f"{task} {asked}", measure=measure)
    name = re.sub(r"[^a-z0-9_.]", "_", f"lm_eval.{task.lower()}")
    metric(
        name=name,
        label=f"{task} (lm-eval)",
        group="utility" if meaning.direction == "utility" else "memorization",
        meaning=meaning,
        passes=(own,),
        packages=("lm_eval",),
    )(partial(_outcome, own=own, task=task, score=score if "," in score else f"{score},none"))
    return name


def _outcome(evidence: Evidence, *, own: Pass, task: str, score: str) -> Outcome:
    found = evidence.measured(own)
    by_task = {**found["results"], **found.get("groups", {})}
    scores = by_task.get(task, {})  # tags have none
    if score not in scores:
        numbers = ", ".join(name for name in scores if "," in name and "_stderr" not in name)
        parts = ", ".join(name for name in by_task if name != task)
        other = f"it has {numbers}" if numbers else f"declare each of its tasks: {parts}"
        raise ConfigError(f"{task} of lm-evaluation-harness has no score {score!r}; {other}.")
    error = scores.get(score.replace(",", "_stderr,", 1))
    details = {
        "standard_error": error if isinstance(error, float) else math.nan,
        "version": found["versions"].get(task),
        "n": sum(count["effective"] for count in found["n-samples"].values()),
    }
    return Outcome(float(scores[score]), details=details)


def run_task(
    model: HookedModel,
    *,
    task: str,
    few_shot: int | None,
    limit: int | None,
    batch_size: int,
    chat: bool,
    tasks: str | None,
) -> Mapping[str, Any]:
    """Return the results of `lm_eval.simple_evaluate` for an open model, without resetting the caller's seeds."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=tasks, include_defaults=tasks is None)
    if task not in manager.all_tasks:
        where = f" in {tasks}" if tasks else ""
        raise ConfigError(f"lm-evaluation-harness has no task {task[:60]!r}{where}: `lm-eval ls tasks` lists its own.")
    tokenizer: Any = copy.deepcopy(model.tokenizer)  # a copy, since the harness sets its padding
    seeds = dict.fromkeys(("random_seed", "numpy_random_seed", "torch_random_seed"))
    found: Mapping[str, Any] = simple_evaluate(
        HFLM(pretrained=model.hf, tokenizer=tokenizer, batch_size=batch_size),
        tasks=[task],
        task_manager=manager,
        num_fewshot=few_shot,
        limit=limit,
        apply_chat_template=chat,
        log_samples=False,
        **seeds,
    )
    return found
