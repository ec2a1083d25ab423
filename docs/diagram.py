"""Writes the state machine into docs/architecture.md from the table in the code: `make docs`.

A test fails while the page and the table differ.
"""

from pathlib import Path

from phalanx.core.states import TABLE, TERMINAL, UNPLACED, Rule, State

PAGE = Path(__file__).parent / "architecture.md"
BEGIN = "<!-- from phalanx.core.states.TABLE by `make docs`: begin -->"
END = "<!-- end -->"

#: The diagram shows the two states without a place as one, and a reserved task in two places.
NOT_PLACED, RELEASED = "unplaced", "released"


def source_of(rule: Rule) -> str:
    if rule.source in UNPLACED:
        return NOT_PLACED
    return RELEASED if rule.released else rule.source.value


def target_of(state: State) -> str:
    return NOT_PLACED if state in UNPLACED else state.value


def mermaid() -> str:
    """One arrow between two places, with all the moves that lead along it."""
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    for rule in TABLE:
        for target in rule.targets:
            arrow = (source_of(rule), target_of(target))
            arrows.setdefault(arrow, {})[rule.move.value] = None
    both = " or ".join(state.value for state in State if state in UNPLACED)
    lines = [
        "stateDiagram-v2",
        f'    state "{both}" as {NOT_PLACED}',
        f'    state "reserved, released" as {RELEASED}',
        f"    [*] --> {NOT_PLACED}",
        f"    {State.RESERVED.value} --> {RELEASED}: the release",
    ]
    lines += [
        f"    {source} --> {target}: {'<br/>'.join(moves)}"
        for (source, target), moves in arrows.items()
    ]
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)


def rules() -> str:
    """Every rule of the table, those side by side that lead to the same states."""
    grouped: dict[tuple[State, bool | None, tuple[State, ...]], list[str]] = {}
    for rule in TABLE:
        key = (rule.source, rule.released, rule.targets)
        grouped.setdefault(key, []).append(f"`{rule.move.value}`")
    lines = ["| from | what happens | to |", "| --- | --- | --- |"]
    for (source, released, targets), moves in grouped.items():
        when = {None: "", False: ", before the release", True: ", after the release"}[released]
        to = ", ".join(f"`{target.value}`" for target in targets)
        lines.append(f"| `{source.value}`{when} | {', '.join(moves)} | {to} |")
    return "\n".join(lines)


def block() -> str:
    """What stands between the two markers, and the markers."""
    return f"{BEGIN}\n```mermaid\n{mermaid()}\n```\n\n{rules()}\n{END}"


def with_block(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + block() + after


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text("utf-8")), "utf-8")
