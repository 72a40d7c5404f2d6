"""Docstrings and signatures as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ForwardRef

WIDTH = 100  # a longer signature has one parameter to a line
LISTS = ("Args", "Attributes", "Raises")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells, and angle brackets outside code, are escaped.

    >>> print(table(["a", "b"], [["1", "int | None"]]))
    | a | b |
    | --- | --- |
    | 1 | int \\| None |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(plain(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """Text whose angle brackets a page shows instead of taking them for tags.

    >>> plain("<z, z'> as `<z>`")
    "\\\\<z, z'> as `<z>`"
    """
    parts = text.split("`")
    return "`".join(part if odd % 2 else part.replace("<", "\\<") for odd, part in enumerate(parts))


def markdown(doc: str, link: Callable[[str], str] = str) -> str:
    """A docstring with its formulas and examples fenced and its arguments as lists; `link` is given the plain text.

    >>> print(markdown("Twice a number.\\n\\n    y = 2 x\\n\\nArgs:\\n    x: a number."))
    Twice a number.
    <BLANKLINE>
    ```text
    y = 2 x
    ```
    <BLANKLINE>
    Arguments:
    <BLANKLINE>
    - `x`: a number.
    """
    return "\n\n".join(_block(block, link) for block in _blocks(doc))


def arguments(doc: str) -> dict[str, str]:
    """The arguments that a docstring describes, by name; "a, b: ..." describes both."""
    found: dict[str, str] = {}
    for block in _blocks(doc):
        title, _, body = block.partition("\n")
        if title in ("Args:", "Attributes:"):
            for names, text in _items(body):
                found |= {name.strip(" *"): text for name in names.split(",")}
    return found


def signature(path: str, value: Any) -> str:
    """How a function is called or a class is made, as it stands in the code."""
    name = f"class {path}" if inspect.isclass(value) else path
    if inspect.isclass(value) and not _is_made_by_users(value):
        return name
    found = inspect.signature(value)
    parts = _parameters(found.parameters)
    returns = (
        "" if found.return_annotation is inspect.Signature.empty else f" -> {_annotation(found.return_annotation)}"
    )
    returns = "" if inspect.isclass(value) else returns
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def _is_made_by_users(value: type) -> bool:
    if getattr(value, "_is_protocol", False) or issubclass(value, BaseException | dict):
        return False
    return hasattr(value, "_fields") or any("__init__" in vars(base) for base in value.__mro__[:-1])


def _parameters(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    parts, starred = [], False
    for name, parameter in parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        parts.append(_parameter(parameter))
    return parts


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    text = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
    annotated = parameter.annotation is not parameter.empty
    if annotated:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}" if annotated else f"={_default(parameter.default)}"
    return text


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):  # of a named tuple
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.strip("'\"")


def _default(default: Any) -> str:
    text = repr(default)
    if " at 0x" in text or text.startswith("<"):
        return getattr(default, "__name__", "...")
    return text


def _blocks(doc: str) -> list[str]:
    """Paragraphs, with the body of a titled list kept with its title and neighbouring examples kept together."""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", doc.strip("\n")):
        if blocks and _goes_on(blocks[-1], block):
            blocks[-1] += f"\n\n{block}"
        elif block.strip():
            blocks.append(block)
    return blocks


def _goes_on(before: str, block: str) -> bool:
    """Whether a paragraph belongs to the one before: further examples, or the rest of a list."""
    if before.startswith(">>>"):
        return block.startswith(">>>")
    return block.startswith(" ") and before.partition(":")[0] in LISTS


def _block(block: str, link: Callable[[str], str]) -> str:
    title, _, body = block.partition("\n")
    if block.startswith("    "):
        return f"```text\n{inspect.cleandoc(block)}\n```"
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if title.removesuffix(":") in LISTS and body:
        head = {"Args": "Arguments", "Attributes": "Fields"}.get(title.removesuffix(":"), title.removesuffix(":"))
        return "\n".join([f"{head}:", "", *(f"- {_code(names)}: {link(plain(text))}" for names, text in _items(body))])
    if title == "Returns:":
        return f"Returns: {link(plain(' '.join(body.split())))}"
    return link(plain(" ".join(block.split()))) if "\n    " not in block else f"```text\n{block}\n```"


def _items(body: str) -> list[tuple[str, str]]:
    """(names, text) of the lines `name: text`, each with the deeper lines below it."""
    items: list[tuple[str, str]] = []
    for line in inspect.cleandoc(f"\n{body}").splitlines():
        names, colon, text = line.partition(":")
        if line and not line.startswith(" ") and colon:
            items.append((names, text.strip()))
        elif line:
            joint = "\n  " if line.lstrip().startswith("- ") else " "  # a list in a list
            items[-1] = (items[-1][0], f"{items[-1][1]}{joint}{line.strip()}")
    return items


def _code(names: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in names.split(","))
