"""Any input is read quickly, as plain data or as an error with a cure."""

import json
import math
import sys
from io import BytesIO

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.manifests import jobs_of

from phalanx.core.errors import Invalid
from phalanx.manifest import bundle, documents, reader_process
from phalanx.manifest.reader import InputKind, ReadRequest, encode
from phalanx.manifest.yaml_tree import DEPTH_LIMIT, NODE_LIMIT


@pytest.fixture(autouse=True, params=[yaml.CSafeLoader, yaml.SafeLoader], ids=["c", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here, with libyaml and without."""
    monkeypatch.setattr(documents, "_LOADER", request.param)


def refusal(data: bytes) -> str:
    with pytest.raises(Invalid) as refused:
        documents.read(data)
    return str(refused.value)


def test_many_documents_are_read_in_order() -> None:
    assert documents.read(b"a: 1\n---\n- b\n- c\n---\nd\n") == [{"a": 1}, ["b", "c"], "d"]


def test_empty_documents_are_left_out() -> None:
    assert documents.read(b"---\n# nothing\n---\na: 1\n---\n") == [{"a": 1}]


def test_json_is_read_exactly() -> None:
    document = {"a": [1, 2.5, True, None, "\U0001f600", "a/b"], "k" * 2000: "\x7f"}
    assert documents.read(json.dumps(document).encode()) == [document]


def test_flow_style_yaml_is_not_taken_for_json() -> None:
    assert documents.read(b"{a: 1, b: [x, y,],}\n---\n{}") == [{"a": 1, "b": ["x", "y"]}, {}]


def test_a_byte_order_mark_is_ignored() -> None:
    assert documents.read(b"\xef\xbb\xbfa: 1") == [{"a": 1}]
    assert documents.read(b'\xef\xbb\xbf{"a": 1}') == [{"a": 1}]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("0777", "0777"),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        (".", "."),
        ("1.2.3", "1.2.3"),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("NaN", "NaN"),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
        ("=", "="),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("32Gi", "32Gi"),
        ("9" * 101, "9" * 101),
    ],
)
def test_an_unquoted_word_is_what_yaml_1_2_says(written: str, value: object) -> None:
    [document] = documents.read(f"key: {written}\n".encode())
    assert document == {"key": value}
    assert isinstance(document, dict)
    found = document["key"]
    assert isinstance(found, type(value))
    assert isinstance(found, bool) == isinstance(value, bool)


def test_nan_is_a_number() -> None:
    assert repr(documents.read(b"- .nan")) == "[[nan]]"


def test_aliases_are_replaced_by_their_anchors() -> None:
    data = b"a: &x {b: 1}\nc: *x\nd: &y [1]\ne: [*y, *x]"
    assert documents.read(data) == [{"a": {"b": 1}, "c": {"b": 1}, "d": [1], "e": [[1], {"b": 1}]}]


def test_anchors_end_with_their_document() -> None:
    assert 'document 2, line 3, column 4: the alias "x" has no anchor' in refusal(
        b"a: &x 1\n---\nb: *x"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"{a: " * 100_000,
        b"- " * 100_000,
        b"[{a: " * 50_000,
        b"\n".join(b" " * level + b"a:" for level in range(1000)),
        b"a0: &a0 []\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 200)),
    ],
    ids=range(9),
)
def test_deep_nesting_is_refused(data: bytes) -> None:
    assert f"more than {DEPTH_LIMIT} levels of nesting; flatten it" in refusal(data)


@pytest.mark.parametrize("document", [b"---\ncommand: a\n", b"---\n", b"--- {}\n"])
def test_the_number_of_yaml_documents_is_limited(document: bytes) -> None:
    assert "more than 500 documents; split the file" in refusal(document * 50_000)


def test_the_number_of_entries_of_a_json_list_is_limited() -> None:
    with pytest.raises(Invalid, match="has 1001 documents, and at most 500 are accepted"):
        bundle.read(b"[" + b",".join([b'{"command":"a"}'] * 1001) + b"]")


def test_the_number_of_tasks_of_an_input_is_limited() -> None:
    with pytest.raises(Invalid, match="the input has 30000 tasks in all, and at most 10000"):
        bundle.read(b"---\n{command: a, gang_size: 10000}\n" * 3)


def test_nesting_up_to_the_limit_is_read() -> None:
    data = b"[" * DEPTH_LIMIT + b"]" * DEPTH_LIMIT
    assert documents.read(data) == [json.loads(data)]
    assert documents.read(b"---\n" + data) == [json.loads(data)]
    assert "levels of nesting" in refusal(b"[" + data + b"]")


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    document = {"a": '[["\\[' * 1000}
    assert documents.read(json.dumps(document).encode()) == [document]


@pytest.mark.parametrize("data", [b"{" * 100_000, b"? " * 100_000, b"{[a]: b}", b"? {a: b}\n: c"])
def test_a_key_is_a_string(data: bytes) -> None:
    assert "a list, a mapping or an alias cannot be a key; write a string" in refusal(data)


def test_aliases_that_multiply_are_refused() -> None:
    lines = [b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
    ]
    assert f"more than {NODE_LIMIT} values" in refusal(b"\n".join(lines))


@pytest.mark.parametrize("data", [b"&a [*a]", b"a: &a [*a]", b"a: &a {b: {c: *a}}"])
def test_an_alias_inside_itself_is_refused(data: bytes) -> None:
    assert 'the alias "a" is inside its own anchor; write the value' in refusal(data)


def test_too_many_values_are_refused() -> None:
    assert f"more than {NODE_LIMIT} values" in refusal(b"- 1\n" * (NODE_LIMIT + 1))


def test_ten_megabytes_are_refused_unread() -> None:
    assert refusal(b"{" * 10_000_000) == (
        "the input has 10000000 bytes, and at most 1048576 are accepted; split it"
    )


def test_the_limit_can_be_set() -> None:
    with pytest.raises(Invalid, match="at most 3 are accepted"):
        documents.read(b"a: 1", limit_bytes=3)


@pytest.mark.parametrize("data", ["a: 1".encode("utf-16"), b"a: \xff", b"\xed\xa0\x80"])
def test_only_utf_8_is_read(data: bytes) -> None:
    assert "is not UTF-8" in refusal(data)


@pytest.mark.parametrize("data", [b"a: \0", b'{"a": "\0"}', b"\0"])
def test_control_characters_are_refused(data: bytes) -> None:
    assert "the control character U+0000 is not allowed; remove it" in refusal(data)


@pytest.mark.parametrize("data", [b"", b"  \n", b"# only a comment", b"---\n---\n", b"null"])
def test_an_empty_input_is_refused(data: bytes) -> None:
    assert refusal(data) == "the input is empty; write a job"


@pytest.mark.parametrize(
    "data",
    [b"roles:\n  a: 1\n  b: 2\n  a: 3\n", b'{"roles": {"a": 1,\n "b": 2,\n\n "a": 3}}'],
    ids=["yaml", "json"],
)
def test_a_key_that_occurs_twice_is_refused_with_its_path(data: bytes) -> None:
    assert "roles.a occurs twice (document 1, line 4, column " in refusal(data)


def test_every_key_that_is_not_a_string_is_refused_with_its_path() -> None:
    said = refusal(b"a:\n  1: x\n  true: y\n  null: z\n  'null': fine\n")
    assert "a.1 is the key 1, not a string (document 1, line 2, column 3)" in said
    assert "a.true is the key true" in said
    assert "a.null is the key null" in said
    assert "fine" not in said


def test_tags_are_refused_with_their_path() -> None:
    said = refusal(b"a: !!python/object/apply:os.system [ls]\nb:\n- !custom x\n")
    assert 'a has the tag "tag:yaml.org,2002:python/object/apply:os.system"' in said
    assert 'b[0] has the tag "!custom", which is not supported; remove it' in said


def test_merge_keys_are_refused() -> None:
    assert "is a merge key, which is not supported" in refusal(b"a: &x {b: 1}\nc:\n  <<: *x\n")


@pytest.mark.parametrize(
    ("data", "location", "message"),
    [
        (b"a: b: c", "line 1, column 5", "a ':' is not allowed here; put the value in quotes"),
        (b"a:\n\tb: 1", "line 2, column 1", "a tab cannot indent a line; use spaces"),
        (b"a: @x", "line 1, column 4", 'a value cannot begin with "@"; put the value in quotes'),
        (b"a: 'x\nb: 1", "line 1, column 4", "the quote that begins here is not closed"),
        (b'a: "\\q"', "line 1, column ", "unknown escape sequence; write \\\\ for a backslash"),
        (b"a: *", "line 1, column ", "a '*' begins the name of an alias; write the name"),
        (b"a: &", "line 1, column ", "a '&' begins the name of an anchor; write the name"),
        (b"a: !<x", "line 1, column ", "tags are not supported; put the value in quotes"),
        (b'{"a": 1', "line ", "a '{' is not closed; add '}', or ','"),
        (b"a: [1, 2\nb: 3", "line 2, column ", "a '[' is not closed; add ']', or ','"),
        (b"a: [", "line ", "a value is missing, or a bracket is not closed; add it"),
        (b"a:\n  b: 1\n c: 2", "line 3, column 2", "the indentation does not match the lines"),
        (b"- a\nb: 1", "line 2, column 1", "the indentation does not match the lines"),
        (b"a: - 1", "line 1, column 4", "a '-' is not allowed here; begin the list on a new line"),
        (b"a: |x\n", "line 1, column ", "text cannot follow '|' or '>'"),
        (b'{"a": 1} x', "line 1, column ", "begin a new document with ---"),
        (b"%YAML 3.0\n---\na", "line 1, column ", "remove the %YAML line"),
    ],
)
def test_broken_yaml_is_refused_with_its_line_and_a_cure(
    data: bytes, location: str, message: str
) -> None:
    assert refusal(data).startswith(f"document 1, {location}")
    assert message in refusal(data)


def test_broken_yaml_is_refused_with_the_number_of_its_document() -> None:
    assert refusal(b"a: 1\n---\nb:\n\tc: 1").startswith("document 2, line 4, column 1: ")


@given(
    st.binary(max_size=60)
    | st.text(":-[]{}&*!|>'\"#% \n\tab01?,<.\\ud", max_size=60).map(str.encode)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = documents.read(data)
    except Invalid:
        return
    assert found


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), plain, max_size=4))
def test_any_json_reads_as_it_was_written(document: dict[str, object]) -> None:
    assert documents.read(json.dumps(document).encode()) == [document]


def test_each_document_is_a_job() -> None:
    data = b"name: a\nroles: {w: {command: x}}\n---\nname: b\nroles: {w: {command: y}}\n"
    assert [spec.name for spec in jobs_of(data)] == ["a", "b"]


def test_the_problems_of_all_documents_are_reported_with_their_number() -> None:
    data = (
        b"roles: {w: {command: x, min: 2}}\n---\nroles: {w: {command: x}}\n---\n[]\n---\nnme: a\n"
    )
    with pytest.raises(Invalid) as refused:
        jobs_of(data)
    assert [str(problem) for problem in refused.value.problems] == [
        "document 1: roles.w.min is 2 but replicas is 1; lower min or raise replicas",
        "document 3: a job is a mapping with roles, not a list",
        "document 4: nme is not a known field; did you mean name?",
        "document 4: roles is missing; it is required",
    ]


def test_the_only_document_has_no_number() -> None:
    with pytest.raises(Invalid, match=r"^roles is missing"):
        jobs_of(b"name: a")


def test_read_options_reach_the_validation() -> None:
    data = b"priority_class: high\nroles: {w: {command: x}}"
    [spec] = jobs_of(data, priority_classes={"high": 5})
    assert spec.priority == 5


@pytest.mark.parametrize("value", ["1" * 30, '"\\ud92a"', "1e400"])
def test_a_value_that_cannot_be_sent_does_not_end_the_process_that_reads(value: str) -> None:
    question = encode(ReadRequest(InputKind.DOCUMENTS, f"a: {value}".encode(), 1000))
    answers = BytesIO()
    reader_process.serve(BytesIO(2 * reader_process.framed(question)), answers, sys.maxsize)
    sent = BytesIO(answers.getvalue())
    assert [reader_process.receive(sent) for _ in range(4)].count(None) == 1
