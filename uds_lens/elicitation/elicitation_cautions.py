"""What a careful reader of an elicitation must know, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from uds_lens.elicitation.elicitation_frames import BEST_OVERALL, summary_frame
from uds_lens.results.cautions import about_first_rows
from uds_lens.results.intervals import FEW_CLUSTERS

if TYPE_CHECKING:
    from uds_lens.elicitation.results import ElicitationResults

LITTLE = 0.3
"""Score of full below which an audit is called weak: even a model that knows says little of it."""


def elicitation_cautions(results: ElicitationResults) -> tuple[str, ...]:
    """See `ElicitationResults.warnings`."""
    told = []
    if "retain" not in results.models:
        told.append(
            "No retain model: a score may be what any model would say by chance. Nothing here is evidence of knowledge "
            "by itself; control_frame() compares with the references of other subjects"
            + (" and with questions that nobody learnt" if results.holdout else "")
            + ", which is weaker."
        )
    table = summary_frame(results)
    silent = _silent(results)
    for row in table.itertuples():
        where = f"{row.audit} ({row.decoding}, {row.statistic})"
        if str(row.share_reason).startswith("no power"):
            told.append(
                f"{where} has no power here: full scores {row.full:.2f}, retain {row.retain:.2f}. That it brings "
                "nothing out says nothing of the unlearned model."
            )
        elif "full" in results.models and row.full < LITTLE and row.audit != BEST_OVERALL:
            told.append(
                f"{where} has little power here: full, which knows, scores {row.full:.2f} under it"
                + (f", retain {row.retain:.2f}" if "retain" in results.models else "")
                + ". That it brings little out says little of the unlearned model."
            )
    for audit in results.audits:
        if audit.capacity:
            told.append(
                f"{audit.name} hands over the answer: it measures capacity, not knowledge, and is left out."
            )
        if audit.name in silent:
            told.append(
                f"{audit.name}: not asked, since it could ask no row; the first: {silent[audit.name]}."
            )
    if (sample := results.provenance.get("sample")) is not None:
        if sample["sample"] == "random":
            worst = table["beyond_sample_error"].max() if len(table) else math.nan
            known = "" if math.isnan(worst) else f" (standard error at most {worst:.3f})"
            told.append(
                f"A random sample was asked: {sample['limit']} of {sample['of']} rows (seed {sample['seed']}). "
                f"Asking all would move a score beyond retain by the error of the sample alone{known}. The intervals "
                "answer another question: what other subjects than those of the data would give."
            )
        else:
            told.append(
                f"Only the first {sample['limit']} of {sample['of']} rows were asked. "
                f"{about_first_rows(sample.get('sorted_by', 'unknown'))}"
            )
    few = int(table["n_subjects"].max()) if len(table) else 0
    if 0 < few < FEW_CLUSTERS:
        told.append(f"{few} subjects: intervals over fewer than {FEW_CLUSTERS} subjects are rough.")
    return tuple(told)


def _silent(results: ElicitationResults) -> dict[str, str]:
    """Audits that nothing was said under, with the reason of their first row."""
    found = {}
    for audit in results.audits:
        said = results.part("unlearned", audit.name).said
        reasons = [why for _, why in audit.skipped] + [
            str(one.told.get("skipped", "no text")) for one in said
        ]
        if reasons and not any(one.texts for one in said):
            found[audit.name] = reasons[0]
    return found
