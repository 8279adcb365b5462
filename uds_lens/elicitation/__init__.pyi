from ._act_pert import ActPert as ActPert
from ._gcg import GCG as GCG
from ._options import (
    AuditRecord as AuditRecord,
)
from ._options import (
    ElicitOptions as ElicitOptions,
)
from ._options import (
    Winner as Winner,
)
from ._probes import (
    AOA as AOA,
)
from ._probes import (
    ICL as ICL,
)
from ._probes import (
    Cloze as Cloze,
)
from ._probes import (
    Mask as Mask,
)
from ._probes import (
    Plain as Plain,
)
from ._probes import (
    Start as Start,
)
from ._prompts import (
    Context as Context,
)
from ._prompts import (
    Prompt as Prompt,
)
from ._prompts import (
    Shot as Shot,
)
from ._prompts import (
    Skip as Skip,
)
from ._registry import (
    PRESETS as PRESETS,
)
from ._registry import (
    PROMPT_AUDITS as PROMPT_AUDITS,
)
from ._registry import (
    find_audit as find_audit,
)
from ._registry import (
    prompt_audit as prompt_audit,
)
from ._results import (
    ElicitationResults as ElicitationResults,
)
from ._results import (
    RankCorrelation as RankCorrelation,
)
from ._results import (
    depth_correlation as depth_correlation,
)
from ._results import (
    require_place as require_place,
)
from ._run import elicit as elicit
from ._scoring import (
    Share as Share,
)
from ._scoring import (
    best_of as best_of,
)
from ._scoring import (
    leak_at as leak_at,
)
from ._scoring import (
    share as share,
)
from ._soft_gcg import SoftGCG as SoftGCG
