from ._anatomy import (
    Anatomy as Anatomy,
)
from ._anatomy import (
    anatomy_of as anatomy_of,
)
from ._checkpoint import checkpoint_folders as checkpoint_folders
from ._compatibility import (
    CheckpointInfo as CheckpointInfo,
)
from ._compatibility import (
    check_compatible as check_compatible,
)
from ._compatibility import (
    read_checkpoint_info as read_checkpoint_info,
)
from ._fingerprint import (
    CheckpointFiles as CheckpointFiles,
)
from ._fingerprint import (
    checkpoint_files as checkpoint_files,
)
from ._fingerprint import (
    fingerprint as fingerprint,
)
from ._hooked import (
    HookedModel as HookedModel,
)
from ._hooked import (
    bridge_on_shared_weights as bridge_on_shared_weights,
)
from ._hooked import (
    clone_sharing_weights as clone_sharing_weights,
)
from ._opening import (
    ModelSource as ModelSource,
)
from ._opening import (
    RetainSource as RetainSource,
)
from ._opening import (
    open_model as open_model,
)
from ._opening import (
    pick_device as pick_device,
)
