from . import (
    annotation as annotation,
)
from . import (
    audit as audit,
)
from . import (
    data as data,
)
from . import (
    doctor as doctor,
)
from . import (
    elicitation as elicitation,
)
from . import (
    errors as errors,
)
from . import (
    generation as generation,
)
from . import (
    meta as meta,
)
from . import (
    metrics as metrics,
)
from . import (
    models as models,
)
from . import (
    patching as patching,
)
from . import (
    plots as plots,
)
from . import (
    report as report,
)
from . import (
    results as results,
)
from . import (
    study as study,
)
from . import (
    toy as toy,
)
from . import (
    unlearning as unlearning,
)
from .annotation import annotate as annotate
from .audit import Baseline as Baseline
from .data import ForgetExample as ForgetExample
from .data import load_examples as load_examples
from .data import load_tofu as load_tofu
from .models import open_model as open_model
from .results import AuditConfig as AuditConfig
from .results import DepthAudit as DepthAudit
from .results import RunOptions as RunOptions

__version__: str
