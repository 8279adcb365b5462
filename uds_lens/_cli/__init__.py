"""The command line: parses arguments, calls the library, prints."""

from uds_lens._cli.app import main

__all__ = ["main"]
