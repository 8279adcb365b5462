"""Entry point of `python -m uds_lens` and of the installed program."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. Ctrl-C during loading prints one line instead of a traceback."""
    try:
        from uds_lens._cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Stopped before anything was done.\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
