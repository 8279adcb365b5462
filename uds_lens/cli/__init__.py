"""The command line: parses arguments, calls the library, prints."""

from uds_lens.cli.app import main

__all__ = ["main"]
