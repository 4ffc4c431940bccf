"""The entry point of TensorBoard's tab "perfkit" (group ``tensorboard_plugins``).

TensorBoard imports entry points unguarded: an error in this module would end TensorBoard. So it imports nothing but
TensorBoard's own class, and everything that can fail is behind `Loader.load`.
"""

from __future__ import annotations

import logging
from typing import Any

from tensorboard.plugins import base_plugin

_LOG = logging.getLogger("tensorboard")


class Loader(base_plugin.TBLoader):  # type: ignore[misc]  # tensorboard has no type information
    """Makes the tab, or says why there is none and leaves TensorBoard as it would be without."""

    def load(self, context: Any) -> Any:
        """The tab's plugin; None where it cannot be."""
        if "perfkit" in (context.plugin_name_to_instance or {}):
            return None  # a second installation: TensorBoard would end for two plugins of one name
        try:
            from perfkit.integrations.tensorboard.tab import Tab

            tab = Tab(context)
            # What TensorBoard asks for unguarded later, or an older one has not.
            tab.frontend_metadata(), tab.get_plugin_apps()
            return tab
        except Exception as error:  # noqa: BLE001 - whatever it is, TensorBoard goes on
            _LOG.error(
                "The tab perfkit is left out (%s: %s): pip install -U 'perfkit[tensorboard]'",
                type(error).__name__,
                error,
            )
            return None
