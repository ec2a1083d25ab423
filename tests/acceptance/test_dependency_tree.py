"""Dependencies and dependants of a job in `phalanx job`."""

from tests.acceptance.terminal import Terminal


def submitted(terminal: Terminal, name: str, *after: str) -> str:
    text = f"{{name: {name}, after: [{', '.join(after)}], roles: {{a: {{command: x}}}}}}"
    said = terminal.type("submit", "-f", "-", stdin=text)
    assert said.status == 0, said.err
    return said.out.strip()


def test_dependencies_and_dependants_are_shown_as_trees(terminal: Terminal) -> None:
    fetch = submitted(terminal, "fetch")
    clean = submitted(terminal, "clean", fetch)
    other = submitted(terminal, "other")
    train = submitted(terminal, "train", clean, other)
    report = submitted(terminal, "report", train)
    publish = submitted(terminal, "publish", report)
    shown = terminal.type("job", "train").out
    assert shown.endswith(
        "\n".join(
            [
                "",
                "runs after",
                f"├── {clean} clean pending",
                f"│   └── {fetch} fetch pending",
                f"└── {other} other pending",
                "",
                "runs before",
                f"└── {report} report pending",
                f"    └── {publish} publish pending",
                "",
            ]
        )
    )
    found = terminal.type("job", "train", "--json").json
    assert found["after"][0] == {"id": clean, "name": "clean", "phase": "pending"}
    assert [each["id"] for each in found["dependants"]] == [report]


def test_the_condition_of_a_dependency_is_shown(terminal: Terminal) -> None:
    said = terminal.type("submit", "--name", "judged", "--", "x")
    terminal.type("submit", "--name", "alarm", "--afternotok", "judged", "--", "x")
    tree = f"└── {said.out.strip()} judged pending (afternotok)\n"
    assert tree in terminal.type("job", "alarm").out


def test_an_ended_dependency_stays_in_the_tree(terminal: Terminal) -> None:
    first = submitted(terminal, "first")
    then = submitted(terminal, "then", first)
    terminal.type("cancel", first)
    assert f"└── {first} first cancelled" in terminal.type("job", then).out


def test_a_job_without_dependencies_has_no_tree(terminal: Terminal) -> None:
    submitted(terminal, "alone")
    assert "after" not in terminal.type("job", "alone").out
