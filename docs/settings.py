"""Writes the tables of docs/reference/configuration.md from the settings in the code.

A test fails while the page and the settings differ; `python -m docs.settings` writes it again.
"""

from pathlib import Path

from phalanx.server.options import GROUPS, OPTIONS, Option

PAGE = Path(__file__).parent / "reference" / "configuration.md"
BEGIN = "<!-- from phalanx.server.options.OPTIONS by `python -m docs.settings`: begin -->"
END = "<!-- end -->"


def row(option: Option) -> str:
    default = option.shown(option.default)
    is_written = option.default is not None and bool(default)
    written = f"`{default}`" if is_written else option.otherwise or "none"
    return f"| `{option.name}` | {option.form} | {written} | {option.help} |"


def block() -> str:
    """The tables, between the two markers."""
    parts = [BEGIN]
    for group in GROUPS:
        rows = [row(option) for option in OPTIONS if option.group == group]
        head = "| setting | form | default | description |\n| --- | --- | --- | --- |"
        parts += [f"\n## {group}\n", head, *rows]
    return "\n".join([*parts, "", END])


def with_block(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + block() + after


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text("utf-8")), "utf-8")
