from ._objectives.altpo import AltPOConfig as AltPOConfig
from ._objectives.ceu import CEUConfig as CEUConfig
from ._objectives.ga import GAConfig as GAConfig, gradient_ascent as gradient_ascent
from ._objectives.graddiff import GradDiffConfig as GradDiffConfig
from ._objectives.idkdpo import IdkDPOConfig as IdkDPOConfig, dpo as dpo
from ._objectives.idknll import IdkNLLConfig as IdkNLLConfig
from ._objectives.kl import KLConfig as KLConfig, kl_to_reference as kl_to_reference
from ._objectives.npo import NPOConfig as NPOConfig, npo as npo
from ._objectives.pdu import PDUConfig as PDUConfig
from ._objectives.rmu import RMUConfig as RMUConfig
from ._objectives.rmulat import RMULATConfig as RMULATConfig
from ._objectives.rr import RRConfig as RRConfig
from ._objectives.satimp import SatImpConfig as SatImpConfig
from ._objectives.simnpo import SimNPOConfig as SimNPOConfig, simnpo as simnpo
from ._objectives.undial import UNDIALConfig as UNDIALConfig, undial as undial
from ._objectives.undo import UNDOConfig as UNDOConfig
from ._objectives.wga import WGAConfig as WGAConfig
from ._passes import (
    Mean as Mean,
    Passes as Passes,
    Terms as Terms,
    answer_lengths as answer_lengths,
    answer_log_probs as answer_log_probs,
    negative_log_likelihood as negative_log_likelihood,
    per_answer as per_answer,
    per_token as per_token,
    retained as retained,
    sequence_log_probs as sequence_log_probs,
)
from ._quantise import quantise as quantise
from ._record import (
    config_name as config_name,
    parse_name as parse_name,
    read_record as read_record,
    recorded_config as recorded_config,
)
from ._registry import (
    METHODS as METHODS,
    Objective as Objective,
    grid as grid,
    make_config as make_config,
    objective as objective,
    withdraw_objective as withdraw_objective,
)
from ._running import finetune as finetune, relearn as relearn, unlearn as unlearn
from ._settings import (
    FinetuneConfig as FinetuneConfig,
    LoraSettings as LoraSettings,
    MethodConfig as MethodConfig,
    RelearnConfig as RelearnConfig,
    RetainConfig as RetainConfig,
    TrainOptions as TrainOptions,
)
