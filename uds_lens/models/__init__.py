"""Checkpoints as hooked models: opening, anatomy, fingerprints, and whether those of an audit fit together."""

from uds_lens.models.anatomy import Anatomy, anatomy_of
from uds_lens.models.bridge import bridge_on_shared_weights, clone_sharing_weights
from uds_lens.models.checkpoint import checkpoint_folders
from uds_lens.models.compatibility import CheckpointInfo, check_compatible, read_checkpoint_info
from uds_lens.models.file_identity import CheckpointFiles, checkpoint_files
from uds_lens.models.fingerprint import fingerprint
from uds_lens.models.hooked import HookedModel
from uds_lens.models.opening import ModelSource, RetainSource, open_model, pick_device

__all__ = [
    "Anatomy",
    "CheckpointFiles",
    "CheckpointInfo",
    "HookedModel",
    "ModelSource",
    "RetainSource",
    "anatomy_of",
    "bridge_on_shared_weights",
    "check_compatible",
    "checkpoint_files",
    "checkpoint_folders",
    "clone_sharing_weights",
    "fingerprint",
    "open_model",
    "pick_device",
    "read_checkpoint_info",
]
