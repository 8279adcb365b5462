from ._act_pert import ActPert as ActPert
from ._gcg import GCG as GCG, SoftGCG as SoftGCG
from ._options import ElicitOptions as ElicitOptions
from ._probes import (
    AOA as AOA,
    ICL as ICL,
    Context as Context,
    Given as Given,
    Mask as Mask,
    Prompt as Prompt,
    Shot as Shot,
    Skip as Skip,
    Start as Start,
    find_probe as find_probe,
    prompt_probe as prompt_probe,
)
from ._results import ElicitationResults as ElicitationResults, depth_correlation as depth_correlation
from ._run import ElicitData as ElicitData, elicit as elicit
from ._scoring import Judge as Judge, Share as Share, share as share
