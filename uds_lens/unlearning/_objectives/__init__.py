"""The ten objectives, one per file: pure loss, configuration, declaration."""
