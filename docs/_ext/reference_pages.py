"""The reference of the site, written from perfkit at each build into docs/_generated: rules, changes, commands, names.

Nothing here lists a rule, a change, a command or a name: what perfkit finds by itself is on the page.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click

import perfkit
from perfkit import ledger, trial
from perfkit.commands import command_line
from perfkit.rules._engine import Rule, find_rules
from perfkit.trial.catalog import KINDS, Change, find_changes

ROOT = Path(__file__).resolve().parents[2]
#: Words that begin a paragraph of a rule's docstring.
_LABELS = ("Problem", "How it shows", "Causes", "Fix", "Line to edit", "Saving", "Source")
#: What the families of rules and changes are about; a family that is not here has its own name as a heading.
_FAMILIES = {
    "data": "Data",
    "python": "Python",
    "sync": "Syncs",
    "ops": "Ops",
    "device": "Device",
    "memory": "Memory",
    "compile": "torch.compile",
    "ranks": "Ranks",
    "settings": "Settings",
    "kernels": "Kernels, from reports of ncu",
    "verdicts": "Verdicts, where no problem could be quantified",
    "compiler": "torch.compile",
    "layers": "Layers",
    "optimizer": "Optimizer",
    "precision": "Precision",
    "frequency": "How often something is done",
}
#: The parts of perfkit that public names come from, in the order of the page.
_PARTS = {
    "profiler": "Record a training",
    "record": "Record a training",
    "ranges": "Mark ranges",
    "syncs": "Find syncs",
    "diagnosis": "Diagnose and compare",
    "comparison": "Diagnose and compare",
    "findings": "Diagnose and compare",
    "run": "Diagnose and compare",
    "trial": "Try changes",
    "replay": "Ask what if",
    "latency": "Measure inference",
    "integrations": "Frameworks",
    "errors": "Errors and warnings",
}


def prose(text: str) -> str:
    """Plain text of a docstring or of --help as markdown: what is between backticks is code, and so are options."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    for index in range(0, len(parts), 2):
        outside = re.sub(r"([\\<>*_\[\]|$])", r"\\\1", parts[index])
        parts[index] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", outside)
    return "".join(parts)


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def markdown(text: str) -> str:
    """A docstring of perfkit as markdown: a paragraph that is indented is code, ``Problem:`` begins a paragraph."""
    done: list[str] = []
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    for indented, group in groupby(paragraphs, key=lambda paragraph: paragraph.startswith("  ")):
        if indented:
            code = _dedent("\n\n".join(group))
            done.append(f"```{'python' if _is_python(code) else 'text'}\n{code}\n```")
        else:
            done.extend(_paragraph(paragraph) for paragraph in group)
    return "\n\n".join(done)


def _dedent(code: str) -> str:
    margin = min(len(line) - len(line.lstrip()) for line in code.splitlines() if line.strip())
    return "\n".join(line[margin:].rstrip() for line in code.splitlines())


def _paragraph(text: str) -> str:
    label, colon, rest = text.partition(":")
    if colon and label in _LABELS:
        return f"**{label}.** {prose(_capital(rest.strip()))}"
    return prose(text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- rules


def rule_section(rule: Rule) -> str:
    """What `perfkit explain` prints about a rule, what it needs, and the changes that answer it."""
    title, _, rest = rule.explanation.partition("\n")
    # A measure that is derived from others and names no recording of its own is always there.
    named = (need for need in rule.needs if need.required and need.available_from != need.type.__name__)
    needs = dict.fromkeys(need.available_from for need in named)
    answers = [change.id for change in find_changes().values() if rule.id in change.answers]
    facts = [f"Needs\n: {_items(needs)}"] if needs else []
    if rule.follows:
        facts.append(f"May only be a consequence of\n: {', '.join(map(_rule_link, rule.follows))}")
    if answers:
        facts.append(f"`perfkit try` answers with\n: {', '.join(map(_change_link, answers))}")
    return "\n\n".join([f"(rule-{rule.id})=\n## {rule.id}", f"*{prose(title)}*", markdown(rest), *facts])


def _items(texts: Iterable[str]) -> str:
    """Some sentences as the text of a definition: one, or a list."""
    found = [prose(text) for text in texts]
    return found[0] if len(found) == 1 else "\n  ".join(f"- {text}" for text in found)


def _rule_link(rule_id: str) -> str:
    return f"[{rule_id}](#rule-{rule_id})"


def _change_link(change_id: str) -> str:
    return f"[{change_id}](#change-{change_id})"


def rule_pages() -> Iterator[tuple[str, str]]:
    """The page of each family of rules, and the table of all of them."""
    index = [
        "# Rules",
        "A rule looks for one problem, and is called where what it needs was recorded. `perfkit explain RULE` prints"
        " the same text as these pages; where the numbers of a rule come from is in"
        " [calibration](../../background/calibration.md).",
    ]
    names = []
    for family, group in groupby(find_rules(), key=lambda rule: rule.family):
        rules = list(group)
        heading = _FAMILIES.get(family, family.capitalize())
        yield f"rules/{family}.md", "\n\n".join([f"# {heading}", *map(rule_section, rules)])
        names.append(family)
        rows = [f"| {_rule_link(rule.id)} | {prose(rule.explanation.splitlines()[0])} |" for rule in rules]
        index.append("\n".join([f"## {heading}\n", "| rule | what it reports |", "|---|---|", *rows]))
    listed = "\n".join(names)
    yield "rules/index.md", "\n\n".join([*index, f"```{{toctree}}\n:hidden:\n\n{listed}\n```"])


# -- changes


def change_section(change: Change) -> str:
    """What `perfkit explain` prints about a change."""
    title, _, rest = change.explanation.partition("\n")
    name = change.id if change.parse is None else f"{change.id}={change.placeholder}"
    code = change.lines.format(value=change.placeholder)
    parts = [
        f"(change-{change.id})=\n### {name}",
        f"*{prose(title)}*",
        markdown(rest),
        f"```python\n{code}\n```",
        f"Kind\n: {change.kind}: {prose(KINDS[change.kind])}.",
        f"Answers\n: {', '.join(map(_rule_link, change.answers))}",
    ]
    if change.toggle:
        parts.append("Measured\n: in one process, by switching it off and on between steps.")
    if change.slow_start:
        parts.append("Tried\n: after the others, since its first steps take long.")
    return "\n\n".join(part for part in parts if part)


def change_page() -> str:
    """All changes by family."""
    parts = [
        "# Changes",
        "What `perfkit try` measures, `perfkit run --with CHANGE` and `perfkit.changes(...)` apply without an edit."
        " `perfkit explain changes` lists them, `perfkit explain CHANGE` prints the same text as here.",
    ]
    for family, group in groupby(find_changes().values(), key=lambda change: change.family):
        parts.append(f"## {_FAMILIES.get(family, family.capitalize())}")
        parts.extend(map(change_section, group))
    return "\n\n".join(parts)


# -- commands


def command_section(name: str, command: click.Command) -> str:
    """A command as its --help has it."""
    context = click.Context(command, info_name=f"perfkit {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"(command-{name})=\n## perfkit {name}",
        f"```text\nperfkit {name} {usage}\n```",
        _help(inspect.cleandoc(command.help or "")),
    ]
    # Arguments are described in the text.
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    if options:
        parts.append("**Options**")
        parts.extend(_option(option, context) for option in options)
    return "\n\n".join(parts)


def _help(text: str) -> str:
    # A form feed or \b in click's help keeps line breaks; the site has them as code.
    return "\n\n".join(
        f"```text\n{paragraph[1:].strip()}\n```" if paragraph.startswith("\b") else prose(paragraph)
        for paragraph in re.split(r"\n\s*\n", text.strip())
    )


def _option(option: click.Option, context: click.Context) -> str:
    """The two columns that --help has for an option."""
    names, text = option.get_help_record(context) or ("", "")
    return f"`{names}`\n: {prose(' '.join(text.split()))}"


def command_page() -> str:
    """All commands, in the order of --help."""
    context = click.Context(command_line)
    commands = [
        (name, command)
        for name in command_line.list_commands(context)
        if (command := command_line.get_command(context, name)) is not None
    ]
    exits = (
        "Exit codes: 0 done, whatever was found; 1 a gate failed; 2 bad input. `perfkit run` returns the script's own."
        " A command writes its result to stdout and everything else to stderr."
    )
    sections = [command_section(name, command) for name, command in commands]
    rows = [
        f"| [perfkit {name}](#command-{name}) | {prose(command.get_short_help_str(200))} |"
        for name, command in commands
    ]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows])
    return "\n\n".join(["# Commands", prose(command_line.help or ""), exits, table, *sections])


# -- public names


def name_page() -> str:
    """The public names by the part of perfkit that defines them, each with its docstring."""
    stub = ast.parse((Path(perfkit.__file__).parent / "__init__.pyi").read_text("utf-8"))
    modules = {
        alias.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    sections: dict[str, list[str]] = {heading: [] for heading in _PARTS.values()}
    for name, module in modules.items():
        part = module.split(".")[1]
        sections.setdefault(_PARTS.get(part, part.capitalize()), []).append(name)
    parts = ["# Python", "Write `import perfkit` and use the names from there. Importing it imports no torch."]
    for heading, names in sections.items():
        parts.append(f"## {heading}")
        parts.extend(f"(name-{name})=\n```{{eval-rst}}\n{_directive(name)}\n```" for name in names)
    return "\n\n".join(parts)


def _directive(name: str) -> str:
    value = getattr(perfkit, name)
    if not isinstance(value, type):
        return f".. auto{'function' if inspect.isroutine(value) else 'data'}:: perfkit.{name}"
    lines = [f".. autoclass:: perfkit.{name}"]
    if not issubclass(value, BaseException):
        lines.append("   :members:")
        # Methods that a class inherits from perfkit's own classes; those of other libraries are in their documentation.
        foreign = {base.__name__ for base in value.__mro__ if not base.__module__.startswith("perfkit")}
        lines.append(f"   :inherited-members: {', '.join(sorted(foreign))}")
        # Fields have no docstring of their own; where the class lists them, they are there already.
        if hasattr(value, "__struct_fields__") and "Attributes:" not in (value.__doc__ or ""):
            lines.append("   :undoc-members:")
    return "\n".join(lines)


# -- figures


def figures_table() -> str:
    """How often verdicts are right, from the tables of benchmarks/README.md: both halves of the suite side by side."""
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    suite = re.search(r"^## bench_verdict$(.*?)(?=^## |\Z)", text, re.M | re.S)
    if suite is None:
        raise ValueError("benchmarks/README.md must have a section bench_verdict")
    halves = [_figures(suite[1], half) for half in ("judging", "tuning")]
    rows = [f"| {figure} | {value} | {halves[1].get(figure, '')} |" for figure, value in halves[0].items()]
    return "\n".join(["| figure | judging | tuning |", "|---|---|---|", *rows])


def _figures(suite: str, half: str) -> dict[str, str]:
    table = re.search(rf"^### {half}\n\n\| figure \| value \|\n\|[-|]+\|\n((?:\|.*\n)+)", suite, re.M)
    if table is None:
        raise ValueError(f"benchmarks/README.md must have the figures of the {half} half below bench_verdict")
    rows = (line.strip("| ").split(" | ") for line in table[1].splitlines())
    return {figure.strip(): value.strip() for figure, value in rows}


# -- Sphinx


def pages() -> dict[str, str]:
    """Path below docs/_generated -> text, of every page that is written."""
    words = "Words that a verdict uses, and how a trial measures; `perfkit explain ledger` and `perfkit explain try`."
    return {
        **dict(rule_pages()),
        "changes.md": change_page(),
        "commands.md": command_page(),
        "python.md": name_page(),
        "figures.md": figures_table(),
        "topics.md": "\n\n".join(
            [
                "# The ledger and the trial",
                words,
                *(f"## {heading}\n\n{markdown(doc or '')}" for heading, doc in _topics().items()),
            ]
        ),
    }


def _topics() -> dict[str, str]:
    return {"The ledger": inspect.getdoc(ledger) or "", "The trial": inspect.getdoc(trial) or ""}


def write_pages(app: Any) -> None:
    """Write the pages; one that did not change keeps its time, so that a second build is short."""
    folder = Path(app.srcdir) / "_generated"
    wanted = pages()
    if folder.exists():
        stale = set(folder.rglob("*.md")) - {folder / name for name in wanted}
        for path in stale:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != f"{text}\n":
            path.write_text(f"{text}\n", "utf-8")


def mark_code(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """In a docstring an indented paragraph outside of a section is code: reStructuredText wants that written."""
    done: list[str] = []
    code = False
    for line in lines:
        before = next((one for one in reversed(done) if one.strip()), "")
        if line.startswith("    ") and not code and done and not done[-1].strip() and not before.startswith(" "):
            done += [".. code-block:: python", ""]
            code = True
        elif line.strip() and not line.startswith(" "):
            code = False
        done.append(line if code else _without_emphasis(line))
    lines[:] = done


def _without_emphasis(line: str) -> str:
    """A star in a docstring is a star: of a pattern or of arguments."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", line)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    # Before napoleon, which has the default priority.
    app.connect("autodoc-process-docstring", mark_code, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
