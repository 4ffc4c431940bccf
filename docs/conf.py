"""The site of docs/: `make docs` builds it into docs/_build.

The reference is written from perfkit itself, at each build (`_ext/reference_pages.py`).
"""

# ruff: noqa: E402 - perfkit of this checkout is documented, whatever is installed

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from perfkit._version import VERSION

project = "perfkit"
author = "the perfkit authors"
version = release = VERSION
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "reference_pages",
]
# Nothing is looked up on the network: names of Python and torch stay text.
intersphinx_mapping: dict[str, tuple[str, str | None]] = {}
exclude_patterns = ["_build", "_ext", "_generated/figures.md"]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

# A name between single backticks in a docstring is code, in markdown as in perfkit explain.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
# Types in signatures that no page describes: Python's, torch's and perfkit's own.
nitpick_ignore_regex = [("py:.*", r".*")]

html_theme = "pydata_sphinx_theme"
html_title = f"perfkit {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# These have no neighbours to list.
html_sidebars = {"index": [], "tutorial": [], "maintainers": []}
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": True,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["sphinx-version"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# The prompt of a command line is not copied, nor the output below it.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
