"""The tab "perfkit": its routes. Everything is below the log directory, is read in bounded pieces, and is only read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import werkzeug
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers
from werkzeug.wsgi import FileWrapper

from perfkit.integrations.tensorboard.drawings import Drawings
from perfkit.integrations.tensorboard.log_directory import Found, LogDirectory
from perfkit.reports import page

_LOG = logging.getLogger("tensorboard")
_STATIC = Path(__file__).parent / "static"
_BLOCK = 2**20

App = Callable[[Any], Any]


class Tab(base_plugin.TBPlugin):  # type: ignore[misc]  # tensorboard has no type information
    """Shows the runs and traces below the log directory."""

    plugin_name = "perfkit"

    def __init__(self, context: Any) -> None:
        """Take what TensorBoard was started with; nothing of the log directory is read yet."""
        flags = context.flags
        self._directory = LogDirectory(context.logdir, getattr(flags, "logdir_spec", None))
        self._drawings = Drawings()
        # Read now: what fits together stays together, also where perfkit is upgraded under a running TensorBoard.
        self._files = {
            "/index.js": ((_STATIC / "index.js").read_text("utf-8"), "text/javascript"),
            "/tab.css": ((_STATIC / "tab.css").read_text("utf-8"), "text/css"),
            "/perfkit.js": (page.script(), "text/javascript"),
            "/perfkit.css": (page.read("perfkit.css"), "text/css"),
        }
        self._looking: threading.Thread | None = None

    def get_plugin_apps(self) -> dict[str, Any]:
        """The routes, below ``data/plugin/perfkit``."""
        routes: dict[str, App] = dict.fromkeys(self._files, self._static)
        routes |= {"/runs": self._runs, "/figures": self._figures, "/trace": self._trace}
        return {route: _guarded(app) for route, app in routes.items()}

    def frontend_metadata(self) -> Any:
        """A tab of its own; it asks for news itself."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="perfkit", disable_reload=True)

    def is_active(self) -> bool:
        """Whether there is something to show; TensorBoard's page waits for it, for a slow file system 1 s at most."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._directory.look, name="perfkit tab", daemon=True)
            self._looking.start()
        self._looking.join(1.0)
        return bool(self._directory.last.runs)

    # -- the routes

    def _static(self, request: Any) -> Any:
        text, kind = self._files[request.path[request.path.rindex("/") :]]
        return http_util.Respond(request, text, kind)

    def _runs(self, request: Any) -> Any:
        listing = self._directory.look()
        runs = [
            {
                "name": found.name,
                "kind": found.kind,
                "version": found.version,
                "changed": max((about.changed for about in found.files.values()), default=""),
                "traces": [{"file": file, "bytes": found.files[file].size} for file in found.traces],
            }
            for found in listing.runs.values()
        ]
        answer = {"logdir": self._directory.text, "runs": runs, "notes": list(listing.notes)}
        return http_util.Respond(request, answer, "application/json")

    def _figures(self, request: Any) -> Any:
        found, file = self._asked(request)
        if found is None or (file and file not in found.traces):
            return _error(request, "there is no such run, or no such trace in it", 404)
        if found.kind == "traces" and not file:
            return _error(request, "this folder has traces, and no run: name one of them", 404)
        if found.links:
            links = ", ".join(found.links[:3])
            return _error(request, f"this run holds symbolic links ({links}), which may lead anywhere: not read", 200)
        version = str(found.files[file]) if file else found.version
        return http_util.Respond(request, self._drawings.of(found.path(file), version), "application/json")

    def _trace(self, request: Any) -> Any:
        found, file = self._asked(request)
        if found is None or file not in found.traces:
            return _error(request, "there is no such trace", 404)
        try:
            opened, size = self._directory.open(found, file)
        except OSError:
            return _error(request, "the trace is not there any more, or is no file of its own", 404)
        name = file.rsplit("/", 1)[-1]
        return wrappers.Response(
            FileWrapper(opened, _BLOCK),
            direct_passthrough=True,
            headers={
                # Compressed or not, the bytes are the file's: a browser must not unpack what it saves.
                "Content-Type": "application/gzip" if name.endswith(".gz") else "application/json",
                "Content-Length": str(size),
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            },
        )

    def _asked(self, request: Any) -> tuple[Found | None, str]:
        return self._directory.look().runs.get(request.args.get("run", "")), request.args.get("trace", "")


def _error(request: Any, text: str, code: int) -> Any:
    return http_util.Respond(request, {"error": text}, "application/json", code=code)


def _guarded(app: App) -> Any:
    """The route as a WSGI application that only answers questions, and whose defects stay its own."""

    @wrappers.Request.application
    def answer(request: Any) -> Any:
        if request.method not in ("GET", "HEAD"):
            return _error(request, "this can only be read", 405)
        try:
            return app(request)
        except werkzeug.exceptions.HTTPException:
            raise
        except Exception:  # noqa: BLE001 - a defect of this tab's must not be TensorBoard's
            _LOG.exception("the tab perfkit could not answer %s", request.path)
            return _error(request, "this could not be answered; TensorBoard's log says why", 500)

    return answer
