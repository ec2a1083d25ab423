"""Finding jobs: lists, names, beginnings of ids, and shell completion."""

from tests.acceptance.terminal import Screen, Terminal, until


def submitted(terminal: Terminal, *words: str) -> str:
    said = terminal.type("submit", *words, "--", "true")
    assert said.status == 0, said.err
    return said.out.strip()


def test_a_list_in_a_pipe_has_one_uncut_line_per_job(terminal: Terminal) -> None:
    wanted = {
        submitted(terminal, "--namespace", "wide", "--gpu", "64", "--name", f"{'x' * 60}-{n}")
        for n in range(3)
    }
    until(lambda: terminal.type("jobs", "--namespace", "wide").out.count("the largest") == 3)
    said = terminal.type("jobs", "--namespace", "wide")
    head, *lines = said.out.splitlines()
    assert head.split()[:3] == ["JOB", "NAME", "PHASE"]
    assert {line.split()[0] for line in lines} == wanted
    assert all("the largest worker has 0" in line for line in lines), said.out
    assert "…" not in said.out
    assert all(line == line.rstrip() for line in said.out.splitlines())


def test_a_narrow_screen_keeps_ids_whole_and_cuts_the_reason(terminal: Terminal) -> None:
    job = submitted(terminal, "--namespace", "narrow", "--gpu", "64", "--name", "train")
    until(lambda: "never fits" in terminal.type("jobs", "--namespace", "narrow").out)
    said = terminal.type("jobs", "--namespace", "narrow", COLUMNS="80")
    [line] = said.out.splitlines()[1:]
    assert line.split()[:3] == [job, "narrow/train", "pending"]
    assert line.endswith("…")
    assert len(line) <= 80


def test_limit_and_all_set_the_length_of_a_list(terminal: Terminal) -> None:
    made = [submitted(terminal, "--namespace", "many") for _ in range(3)]
    listed = terminal.type("jobs", "--namespace", "many", "-n", "2", "--json").json
    assert [job["id"] for job in listed] == made[:0:-1]
    everything = terminal.type("jobs", "--namespace", "many", "--all", "--json").json
    assert [job["id"] for job in everything] == made[::-1]
    assert terminal.type("jobs", "--namespace", "many", "--phase", "done", "--json").json == []


def test_a_job_is_found_by_its_id_the_beginning_of_its_id_or_its_name(terminal: Terminal) -> None:
    job = submitted(terminal, "--namespace", "found", "--name", "needle")
    for called in (job, job[:-1], "needle", "found/needle"):
        assert terminal.type("job", called, "--json").json["id"] == job


def test_a_finished_job_is_found_by_the_beginning_of_its_id(terminal: Terminal) -> None:
    job = submitted(terminal, "--namespace", "ended", "--name", "j-needle")
    assert terminal.type("cancel", job[:-1]).status == 0
    for called in (job[:-1], "j-needle"):
        shown = terminal.type("job", called, "--json").json
        assert (shown["id"], shown["phase"]) == (job, "cancelled")


def test_the_beginning_of_several_ids_is_refused_with_the_candidates(terminal: Terminal) -> None:
    jobs = [submitted(terminal, "--namespace", "prefix") for _ in range(2)]
    assert terminal.type("cancel", jobs[0]).status == 0
    said = terminal.type("job", "j-")
    assert said.status == 2
    assert said.err.startswith("phalanx: j- is ambiguous: j-")
    assert jobs[1] in said.err


def test_an_ambiguous_name_is_refused_with_the_candidates(terminal: Terminal) -> None:
    jobs = [submitted(terminal, "--namespace", each, "--name", "twin") for each in ("a", "b")]
    said = terminal.type("job", "twin")
    assert said.status == 2
    assert all(job in said.err for job in jobs)
    assert said.err.endswith("; write the id of one of them\n")
    assert terminal.type("job", "a/twin", "--json").json["id"] == jobs[0]


def test_a_reused_name_means_the_unfinished_job(terminal: Terminal) -> None:
    first = submitted(terminal, "--namespace", "again", "--name", "phoenix")
    assert terminal.type("cancel", "again/phoenix").status == 0
    assert terminal.type("job", "again/phoenix", "--json").json["id"] == first
    second = submitted(terminal, "--namespace", "again", "--name", "phoenix")
    assert terminal.type("job", "again/phoenix", "--json").json["id"] == second


def test_an_unknown_job_ends_with_status_3(terminal: Terminal) -> None:
    for called in ("nosuch", "j-zzz", "j-" + "0" * 20, "no/such"):
        said = terminal.type("job", called)
        assert (said.status, said.out) == (3, "")
        assert said.err == f"phalanx: there is no job {called}\n"


def test_completion_offers_matching_ids_and_names(terminal: Terminal) -> None:
    job = submitted(terminal, "--namespace", "tab", "--name", "press")
    asking = {"_PHALANX_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    said = terminal.type(COMP_WORDS=f"phalanx job {job[:-2]}", **asking)
    assert said.out.split() == [job]
    said = terminal.type(COMP_WORDS="phalanx cancel tab/p", **asking)
    assert said.out.split() == ["tab/press"]
    for words in ("submit --queue def", "jobs --queue def", "queue set ml --parent def"):
        asking["COMP_CWORD"] = str(len(words.split()))
        said = terminal.type(COMP_WORDS=f"phalanx {words}", **asking)
        assert said.out.split() == ["default"]


def test_completion_offers_nothing_without_a_server() -> None:
    said = Terminal("http://127.0.0.1:9").type(
        _PHALANX_COMPLETE="complete_bash", COMP_CWORD="2", COMP_WORDS="phalanx job j"
    )
    assert (said.out.strip(), said.err) == ("", "")


def test_on_a_terminal_the_phase_has_its_colour(terminal: Terminal) -> None:
    submitted(terminal, "--namespace", "colour", "--gpu", "64")
    with Screen(terminal, "jobs", "--namespace", "colour") as screen:
        screen.until("\x1b[33mpending\x1b[0m")
