"""``python -m perfkit``: the command line."""

from __future__ import annotations

from perfkit.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
