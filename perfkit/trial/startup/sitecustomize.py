"""Protects the processes of a rerun that are not forked: spawned workers, and scripts that the program starts."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from perfkit.trial.protection import protect_process

protect_process()

# The one that this module hides.
_own = os.path.dirname(os.path.abspath(__file__))
_hidden = PathFinder.find_spec(__name__, [path for path in sys.path if os.path.abspath(path) != _own])
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
