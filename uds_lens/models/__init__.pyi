from ._anatomy import Anatomy as Anatomy, anatomy_of as anatomy_of
from ._checkpoint import checkpoint_folders as checkpoint_folders
from ._compatibility import (
    CheckpointInfo as CheckpointInfo,
    check_compatible as check_compatible,
    read_checkpoint_info as read_checkpoint_info,
)
from ._fingerprint import (
    CheckpointFiles as CheckpointFiles,
    checkpoint_files as checkpoint_files,
    fingerprint as fingerprint,
)
from ._hooked import (
    HookedModel as HookedModel,
    ModelSource as ModelSource,
    RetainSource as RetainSource,
    bridge_on_shared_weights as bridge_on_shared_weights,
    clone_sharing_weights as clone_sharing_weights,
    open_model as open_model,
    pick_device as pick_device,
)
