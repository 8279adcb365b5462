"""Files that are either whole or absent, that overwrite nothing foreign, and that say when they were altered."""

from uds_lens.storage.atomic import (
    atomic_directory,
    atomic_files,
    atomic_write_bytes,
    atomic_write_text,
)
from uds_lens.storage.bounded_table import read_table_rows
from uds_lens.storage.conform import conform
from uds_lens.storage.fresh import format_of, located, made_here, require_fresh
from uds_lens.storage.refused_writes import IN_TEMPORARY, writing
from uds_lens.storage.scratch import SpillFolder
from uds_lens.storage.sealed import SEAL, parse_json, plain, read_sealed, seal_of, sealed, unsealed
from uds_lens.storage.whole_file import read_file, sha256_bytes, sha256_file

__all__ = [
    "IN_TEMPORARY",
    "SEAL",
    "SpillFolder",
    "atomic_directory",
    "atomic_files",
    "atomic_write_bytes",
    "atomic_write_text",
    "conform",
    "format_of",
    "located",
    "made_here",
    "parse_json",
    "plain",
    "read_file",
    "read_sealed",
    "read_table_rows",
    "require_fresh",
    "seal_of",
    "sealed",
    "sha256_bytes",
    "sha256_file",
    "unsealed",
    "writing",
]
