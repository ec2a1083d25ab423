"""`phalanx convert`: a manifest of any dialect in the native form. Needs no server."""

from typing import TYPE_CHECKING, Annotated
from zoneinfo import available_timezones

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.files import IgnoreImage, IgnoreUnsupported, about, contents
from phalanx.cli.options import quiet_option
from phalanx.cli.output import be_quiet, warn

if TYPE_CHECKING:
    from phalanx.manifest.bundle import Bundle

File = Annotated[
    str,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Manifest, YAML or JSON; - reads standard input.",
        show_default=False,
    ),
]


class _AnyClass(dict[str, int]):
    """Accepts every priority class: only the server knows which exist."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 0


def convert(
    file: File,
    *,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    quiet: Annotated[bool, quiet_option()] = False,
) -> None:
    """Convert a manifest to the native form, and print it.

    phalanx convert -f pods.yaml > job.yaml
    """
    from phalanx.manifest.native_file import native_yaml  # noqa: PLC0415

    be_quiet(quiet)
    bundle = _read(file, ignore_image=ignore_image, ignore_unsupported=ignore_unsupported)
    for warning in bundle.warnings:
        warn(str(warning))
    typer.echo(native_yaml(bundle.jobs, bundle.queues), nl=False)


def _read(file: str, *, ignore_image: bool, ignore_unsupported: bool) -> "Bundle":
    from phalanx.core.errors import Invalid  # noqa: PLC0415
    from phalanx.manifest.bundle import read  # noqa: PLC0415
    from phalanx.manifest.read_options import ReadOptions  # noqa: PLC0415

    options = ReadOptions(
        priority_classes=_AnyClass(),
        timezones=frozenset(available_timezones()) or None,
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        whole_gangs=True,
    )
    try:
        return read(contents(file), options)
    except Invalid as error:
        end(Status.USAGE, *(about(file, str(problem)) for problem in error.problems))
