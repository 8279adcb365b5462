from ._act_pert import ActPert as ActPert
from ._gcg import GCG as GCG, SoftGCG as SoftGCG
from ._options import ElicitOptions as ElicitOptions, ProbeRecord as ProbeRecord, Winner as Winner
from ._probes import (
    AOA as AOA,
    ICL as ICL,
    PRESETS as PRESETS,
    PROMPT_PROBES as PROMPT_PROBES,
    Alias as Alias,
    Cloze as Cloze,
    Context as Context,
    Given as Given,
    Mask as Mask,
    MultiHop as MultiHop,
    Plain as Plain,
    Prompt as Prompt,
    Shot as Shot,
    Skip as Skip,
    Start as Start,
    find_probe as find_probe,
    prompt_probe as prompt_probe,
)
from ._results import (
    ElicitationResults as ElicitationResults,
    RankCorrelation as RankCorrelation,
    depth_correlation as depth_correlation,
)
from ._run import ElicitData as ElicitData, elicit as elicit
from ._scoring import Judge as Judge, Share as Share, best_of as best_of, leak_at as leak_at, share as share
