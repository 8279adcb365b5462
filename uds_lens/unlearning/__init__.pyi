from ._configs import (
    MethodConfig as MethodConfig,
)
from ._configs import (
    RetainConfig as RetainConfig,
)
from ._data import load_refusals as load_refusals
from ._grid import grid as grid
from ._job import LoraSettings as LoraSettings
from ._likelihood import (
    answer_lengths as answer_lengths,
)
from ._likelihood import (
    negative_log_likelihood as negative_log_likelihood,
)
from ._likelihood import (
    sequence_log_probs as sequence_log_probs,
)
from ._objectives.altpo import AltPOConfig as AltPOConfig
from ._objectives.ga import (
    GAConfig as GAConfig,
)
from ._objectives.ga import (
    gradient_ascent as gradient_ascent,
)
from ._objectives.graddiff import GradDiffConfig as GradDiffConfig
from ._objectives.idkdpo import (
    IdkDPOConfig as IdkDPOConfig,
)
from ._objectives.idkdpo import (
    dpo as dpo,
)
from ._objectives.idknll import IdkNLLConfig as IdkNLLConfig
from ._objectives.kl import (
    KLConfig as KLConfig,
)
from ._objectives.kl import (
    kl_to_reference as kl_to_reference,
)
from ._objectives.npo import (
    NPOConfig as NPOConfig,
)
from ._objectives.npo import (
    npo as npo,
)
from ._objectives.rmu import (
    RMUConfig as RMUConfig,
)
from ._objectives.rmu import (
    state_distance as state_distance,
)
from ._objectives.rmu import (
    steering_vector as steering_vector,
)
from ._objectives.rmu import (
    summed_state_distance as summed_state_distance,
)
from ._objectives.simnpo import (
    SimNPOConfig as SimNPOConfig,
)
from ._objectives.simnpo import (
    simnpo as simnpo,
)
from ._objectives.undial import (
    UNDIALConfig as UNDIALConfig,
)
from ._objectives.undial import (
    undial as undial,
)
from ._options import TrainOptions as TrainOptions
from ._passes import (
    FrozenModel as FrozenModel,
)
from ._passes import (
    Passes as Passes,
)
from ._passes import (
    answer_log_probs as answer_log_probs,
)
from ._quantise import quantise as quantise
from ._record import (
    config_name as config_name,
)
from ._record import (
    parse_name as parse_name,
)
from ._record import (
    read_record as read_record,
)
from ._record import (
    recorded_config as recorded_config,
)
from ._registry import (
    METHODS as METHODS,
)
from ._registry import (
    Objective as Objective,
)
from ._registry import (
    make_config as make_config,
)
from ._registry import (
    objective as objective,
)
from ._registry import (
    withdraw_objective as withdraw_objective,
)
from ._relearning import RelearnConfig as RelearnConfig
from ._running import (
    relearn as relearn,
)
from ._running import (
    unlearn as unlearn,
)
from ._terms import (
    Mean as Mean,
)
from ._terms import (
    Terms as Terms,
)
from ._terms import (
    per_answer as per_answer,
)
from ._terms import (
    per_token as per_token,
)
from ._terms import (
    retained as retained,
)
