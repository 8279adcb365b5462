from ._compatibility import CheckpointInfo as CheckpointInfo, read_checkpoint_info as read_checkpoint_info
from ._fingerprint import fingerprint as fingerprint
from ._hooked import HookedModel as HookedModel, open_model as open_model
