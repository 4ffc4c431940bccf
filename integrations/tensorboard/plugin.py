"""The entry point of TensorBoard's tab "perfkit" (group ``tensorboard_plugins``).

TensorBoard imports entry points unguarded: an error in this module would end TensorBoard. So this module imports only
TensorBoard's own class, and everything that can fail is inside `TabLoader.load`.
"""

from __future__ import annotations

import logging
from typing import Any

from tensorboard.plugins import base_plugin

_LOG = logging.getLogger("tensorboard")


class TabLoader(base_plugin.TBLoader):  # type: ignore[misc]  # tensorboard has no type information
    """Makes the tab; if that fails, logs the reason, and TensorBoard runs without the tab."""

    def load(self, context: Any) -> Any:
        """The tab's plugin; None if it cannot be made."""
        if "perfkit" in (context.plugin_name_to_instance or {}):
            return None  # a second installation: two plugins of the same name would end TensorBoard
        try:
            from perfkit.integrations.tensorboard.tab import Tab  # may fail: see above

            tab = Tab(context)
            # TensorBoard calls these unguarded later, and older versions may lack what they use.
            tab.frontend_metadata(), tab.get_plugin_apps()
            return tab
        except Exception as error:  # noqa: BLE001 - whatever it is, TensorBoard must run
            _LOG.error(
                "The tab perfkit could not be loaded (%s: %s): pip install -U 'perfkit[tensorboard]'",
                type(error).__name__,
                error,
            )
            return None
