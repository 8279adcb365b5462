from ._checks import (
    Finding as Finding,
)
from ._checks import (
    Verdict as Verdict,
)
from ._checks import (
    examine_environment as examine_environment,
)
from ._checks import (
    examine_inputs as examine_inputs,
)
