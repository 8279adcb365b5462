"""The ten objectives, one per file: its pure loss, its configuration, its declaration."""
