"""Elicitation: can the answer be made to come out, and would a model that never knew say the same?"""

from uds_lens.elicitation.act_pert import ActPert
from uds_lens.elicitation.audit_words import PRESETS, PROMPT_AUDITS, find_audit, prompt_audit
from uds_lens.elicitation.depth import RankCorrelation, depth_correlation
from uds_lens.elicitation.estimates import best_of, leak_at
from uds_lens.elicitation.gcg import GCG
from uds_lens.elicitation.options import ElicitOptions
from uds_lens.elicitation.prompt import Context, Prompt, Shot, Skip
from uds_lens.elicitation.prompt_audits import AOA, ICL, Cloze, Mask, Plain, Start
from uds_lens.elicitation.result_records import AuditRecord, Winner
from uds_lens.elicitation.results import ElicitationResults
from uds_lens.elicitation.run import elicit
from uds_lens.elicitation.saved import require_place
from uds_lens.elicitation.shares import Share, share
from uds_lens.elicitation.soft_gcg import SoftGCG

__all__ = [
    "AOA",
    "GCG",
    "ICL",
    "PRESETS",
    "PROMPT_AUDITS",
    "ActPert",
    "AuditRecord",
    "Cloze",
    "Context",
    "ElicitOptions",
    "ElicitationResults",
    "Mask",
    "Plain",
    "Prompt",
    "RankCorrelation",
    "Share",
    "Shot",
    "Skip",
    "SoftGCG",
    "Start",
    "Winner",
    "best_of",
    "depth_correlation",
    "elicit",
    "find_audit",
    "leak_at",
    "prompt_audit",
    "require_place",
    "share",
]
