"""lm-evaluation-harness tasks as metrics, run on the model that is already open."""

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
    """Declare an lm-evaluation-harness task as a custom metric `lm_eval.TASK`, for the rest of the Python session.

    On the command line, import a file that calls this function with `--import FILE`. To work offline
    (`HF_HUB_OFFLINE=1`), download the task's data beforehand.

    Args:
        task: Name of a task or group, such as "mmlu" or "wmdp".
        score: The task's score to use; for a filter other than "none", append the filter, as in
            "exact_match,strict-match".
        meaning: Scale of the score; for WMDP, pass `Meaning("knowledge", "nothing left", "all known")`.
        tasks: Directory with your own tasks (YAML), which replace the harness's tasks.
        few_shot: Number of examples before each question; None uses the task's default.
        limit: Use only the first `limit` questions per task; None uses all.
        batch_size: Rows per batch.
        chat: Apply the tokenizer's chat template to the questions.

    Returns:
        Name of the metric. Its details contain the standard error, the task's version and the number of questions.

    Raises:
        ConfigError: The name is taken. Also raised during measurement if there is no such task or score.
        MissingDependencyError: Raised during measurement if the extra `lm-eval` is not installed.

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
    scores = by_task.get(task, {})  # tags have no scores
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
    """Run `lm_eval.simple_evaluate` on an open model, without resetting the caller's random seeds."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=tasks, include_defaults=tasks is None)
    if task not in manager.all_tasks:
        where = f" in {tasks}" if tasks else ""
        raise ConfigError(
            f"lm-evaluation-harness has no task {task[:60]!r}{where}: list the tasks with `lm-eval ls tasks`."
        )
    tokenizer: Any = copy.deepcopy(model.tokenizer)  # the harness changes its padding
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
