"""The routes of the tab "perfkit". They read files below the log directory only, in bounded pieces, and write none."""

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
from perfkit.integrations.tensorboard.log_directory import LogDirectory, LoggedRun
from perfkit.reports import page

_LOG = logging.getLogger("tensorboard")
_STATIC = Path(__file__).parent / "static"
_BLOCK = 2**20

App = Callable[[Any], Any]


class Tab(base_plugin.TBPlugin):  # type: ignore[misc]  # tensorboard has no type information
    """Shows the runs and traces below the log directory."""

    plugin_name = "perfkit"

    def __init__(self, context: Any) -> None:
        """Take TensorBoard's options; the log directory is not read yet."""
        flags = context.flags
        self._directory = LogDirectory(context.logdir, getattr(flags, "logdir_spec", None))
        self._drawings = Drawings()
        # Read now, so that they fit together even if perfkit is upgraded while TensorBoard runs.
        self._files = {
            "/index.js": ((_STATIC / "index.js").read_text("utf-8"), "text/javascript"),
            "/tab.css": ((_STATIC / "tab.css").read_text("utf-8"), "text/css"),
            "/perfkit.js": (page.script(), "text/javascript"),
            "/perfkit.css": (page.read("perfkit.css"), "text/css"),
        }
        self._scan: threading.Thread | None = None

    def get_plugin_apps(self) -> dict[str, Any]:
        """The routes, below ``data/plugin/perfkit``."""
        routes: dict[str, App] = dict.fromkeys(self._files, self._static)
        routes |= {"/runs": self._runs, "/figures": self._figures, "/trace": self._trace}
        return {route: _guarded(app) for route, app in routes.items()}

    def frontend_metadata(self) -> Any:
        """A tab, which reloads itself."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="perfkit", disable_reload=True)

    def is_active(self) -> bool:
        """Whether there is something to show. TensorBoard's page waits for the answer, at most 1 s."""
        if self._scan is None or not self._scan.is_alive():
            self._scan = threading.Thread(target=self._directory.scan, name="perfkit tab", daemon=True)
            self._scan.start()
        self._scan.join(1.0)
        return bool(self._directory.last.runs)

    # -- the routes

    def _static(self, request: Any) -> Any:
        text, kind = self._files[request.path[request.path.rindex("/") :]]
        return http_util.Respond(request, text, kind)

    def _runs(self, request: Any) -> Any:
        listing = self._directory.scan()
        runs = [
            {
                "name": run.name,
                "kind": run.kind,
                "version": run.version,
                "changed": max((file.changed for file in run.files.values()), default=""),
                "traces": [{"file": name, "bytes": run.files[name].size} for name in run.traces],
            }
            for run in listing.runs.values()
        ]
        answer = {"logdir": self._directory.text, "runs": runs, "notes": list(listing.notes)}
        return http_util.Respond(request, answer, "application/json")

    def _figures(self, request: Any) -> Any:
        run, file = self._requested(request)
        if run is None or (file and file not in run.traces):
            return _error(request, "there is no such run, or no such trace in it", 404)
        if run.kind == "traces" and not file:
            return _error(request, "this folder has traces but no run: choose a trace", 404)
        if run.links:
            links = ", ".join(run.links[:3])
            return _error(request, f"this run has symbolic links ({links}), so it was not read", 200)
        version = str(run.files[file]) if file else run.version
        return http_util.Respond(request, self._drawings.of(run.path(file), version), "application/json")

    def _trace(self, request: Any) -> Any:
        run, file = self._requested(request)
        if run is None or file not in run.traces:
            return _error(request, "there is no such trace", 404)
        try:
            opened, size = self._directory.open(run, file)
        except OSError:
            return _error(request, "the trace no longer exists, or is not a regular file", 404)
        name = file.rsplit("/", 1)[-1]
        return wrappers.Response(
            FileWrapper(opened, _BLOCK),
            direct_passthrough=True,
            headers={
                # The bytes of the file as it is: a browser must not unpack what it saves.
                "Content-Type": "application/gzip" if name.endswith(".gz") else "application/json",
                "Content-Length": str(size),
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            },
        )

    def _requested(self, request: Any) -> tuple[LoggedRun | None, str]:
        return self._directory.scan().runs.get(request.args.get("run", "")), request.args.get("trace", "")


def _error(request: Any, text: str, code: int) -> Any:
    return http_util.Respond(request, {"error": text}, "application/json", code=code)


def _guarded(app: App) -> Any:
    """The route as a WSGI application that only reads, and whose errors do not reach TensorBoard."""

    @wrappers.Request.application
    def answer(request: Any) -> Any:
        if request.method not in ("GET", "HEAD"):
            return _error(request, "only GET and HEAD are supported", 405)
        try:
            return app(request)
        except werkzeug.exceptions.HTTPException:
            raise
        except Exception:  # noqa: BLE001 - an error of this tab must not reach TensorBoard
            _LOG.exception("the tab perfkit failed to answer %s", request.path)
            return _error(request, "an error occurred; TensorBoard's log has the details", 500)

    return answer
