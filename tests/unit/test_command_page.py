"""The reference of the command line says what the code has."""

from docs import commands

from phalanx.cli.exits import Status


def test_the_page_is_that_of_the_code() -> None:
    page = commands.PAGE.read_text("utf-8")
    assert commands.BEGIN in page
    assert commands.with_block(page) == page, "run `make docs`"


def test_every_command_and_each_of_its_own_options_is_on_the_page() -> None:
    page = commands.PAGE.read_text("utf-8")
    found = list(commands.commands())
    assert len(found) > 20
    for _, name, command in found:
        assert f"### `phalanx {name}" in page
        assert command.help
        for option in commands.flags(command):
            assert option.help, f"{name} {option.opts} has no help"
            assert option.opts[0] in page


def test_every_status_is_on_the_page() -> None:
    page = commands.PAGE.read_text("utf-8")
    for status in Status:
        assert f"\n| {status.value} | " in page


def test_every_command_is_quiet_on_request_but_servers_and_commands_without_notes() -> None:
    without = [
        name
        for _, name, command in commands.commands()
        if not any("--quiet" in option.opts for option in command.params)
    ]
    servers = ["up", "serve", "worker", "kube scheduler"]
    only_results = ["login", "logout", "help", "config", "secret new-key", "policy init"]
    assert without == [*servers, *only_results, "ca list", "ca rotate", "ca remove"]
