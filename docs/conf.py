"""The site: Markdown by MyST, the API by autodoc, the theme Furo. `make docs` builds it."""

import re
import sys
from typing import Any

from sphinx.pycode import ModuleAnalyzer

from cosnorm import __version__

project = "cosnorm"
author = "The cosnorm authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"cosnorm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/mark.svg"
html_copy_source = False
html_theme_options = {
    "light_logo": "mark.svg",
    "dark_logo": "mark.svg",
    "light_css_variables": {
        "color-brand-primary": "#0b5e8e",
        "color-brand-content": "#0b5e8e",
        "color-brand-visited": "#5a4a8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cb8e6",
        "color-brand-content": "#6cb8e6",
        "color-brand-visited": "#b3a4e0",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 60
python_use_unqualified_type_names = True
default_role = "code"
napoleon_use_rtype = False
napoleon_use_param = False  # arguments that share a line share their text


def _marked(_app: Any, what: str, name: str, obj: object, _options: Any, lines: list) -> None:
    """Docstrings are written to be read in the source; here they get the marks that Sphinx wants.

    |x| is a length and no substitution; an indented paragraph is a formula or code; a paragraph of
    `name: what it is` lists arguments. A value's text is what stands below it where it is made.
    """
    if what == "data":
        lines[:] = _below(name.rpartition(".")[2], obj)
    text = re.sub(r"(?<!\\)\|", r"\|", "\n".join(lines))
    paragraphs = re.split(r"\n{2,}", text.strip("\n"))
    for number, paragraph in enumerate(paragraphs):
        if paragraph.startswith("    "):
            paragraphs[number] = "::\n\n" + paragraph.replace(r"\|", "|")
        elif re.match(r"[a-z_][a-z_, ]*: ", paragraph):
            entries = re.sub(r"\n +", " ", paragraph).split("\n")
            paragraphs[number] = "\n".join(["Args:", *(f"    {entry}" for entry in entries)])
    lines[:] = "\n\n".join(paragraphs).split("\n")


def _below(name: str, value: object) -> list[str]:
    """Sphinx looks below a value only in the module by whose name it is asked for."""
    modules = [m for key, m in sys.modules.items() if key.startswith("cosnorm")]
    for module in modules:
        if vars(module).get(name) is value:
            found = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
            if ("", name) in found:
                return found["", name]
    raise LookupError(f"nothing is said of {name} where it is made")


def _short(
    _app: Any,
    _what: str,
    _name: str,
    _obj: object,
    _options: Any,
    told: str | None,
    gives: str | None,
) -> tuple[str | None, str | None]:
    """Signatures of dataclasses come with the homes of their types, and with what is no Python."""
    if told is not None:
        told = re.sub(r"~(\w+\.)+", "", told).replace("<factory>", "{}")
    return told, gives


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", _short)
    app.connect("autodoc-process-docstring", _marked, priority=400)  # before napoleon
