"""Tasks that leave in their folder what a worker does not expect, by mistake or on purpose."""

import sys
from typing import NamedTuple

#: What precedes each command: the names that it uses.
_NAMES = """
out="$PHALANX_CHECKPOINT_OUT"; progress="$PHALANX_PROGRESS"; folder=$(dirname "$out")
"""
#: Tells the test that everything is in place, and waits for the stop.
_WAIT = '\ntouch "$MARKS/$PHALANX_JOB"; exec sleep 1000'


class HostileTask(NamedTuple):
    command: str
    problem: str = ""  #: what the job's events say; empty if nothing is wrong
    needs_root: bool = False

    @property
    def script(self) -> str:
        return _NAMES + self.command + _WAIT


def _python(program: str) -> str:
    return f"{sys.executable} -I -S - <<'PROGRAM'\n{program}\nPROGRAM"


_NOT_A_FILE = "; write a file to PHALANX_CHECKPOINT_OUT"

HOSTILE_TASKS = {
    "directory": HostileTask(
        'mkdir -p "$out/deeper"; touch "$out/file"', f"it is a directory{_NOT_A_FILE}"
    ),
    "symlink to a secret": HostileTask(
        'ln -s /etc/shadow "$out"', f"it is a symbolic link{_NOT_A_FILE}"
    ),
    "symlink to an endless device": HostileTask(
        'ln -s /dev/zero "$out"; ln -s /dev/zero "$progress"',
        "the progress file is a symbolic link",
    ),
    "hard link": HostileTask('echo 1 >"$folder/a"; ln "$folder/a" "$out"', "it is a hard link"),
    "fifo": HostileTask('mkfifo "$out" "$progress"', "it is a FIFO"),
    "socket": HostileTask(
        _python(
            "import os, socket\n"
            'folder, name = os.path.split(os.environ["PHALANX_CHECKPOINT_OUT"])\n'
            "os.chdir(folder)\n"
            "socket.socket(socket.AF_UNIX).bind(name)"
        ),
        "it is a socket",
    ),
    "device": HostileTask('mknod "$out" c 1 5', "it is a device", needs_root=True),
    "sparse file": HostileTask(
        'truncate -s 8T "$out"; truncate -s 8T "$progress"', "8.0 TiB, the limit is 1.0 MiB"
    ),
    "save over the limit": HostileTask(
        f"""save='from phalanx import task; task.checkpoint.save(bytes(2**20 + 1))'
        {sys.executable} -c "$save" 2>"$folder/errors" && exit 1
        grep -q "CheckpointTooLarge: the checkpoint has 1048577 bytes" "$folder/errors" || exit 2"""
    ),
    "no folder": HostileTask('rm -r "$folder"', "the folder of the task was removed"),
    "symlink in place of its folder": HostileTask(
        'mkdir "$MARKS/other.$PHALANX_JOB"; echo 1 >"$MARKS/other.$PHALANX_JOB/checkpoint.out"\n'
        'rm -r "$folder"; ln -s "$MARKS/other.$PHALANX_JOB" "$folder"',
        "it cannot be read: Not a directory",
    ),
    "file in place of its folder": HostileTask(
        'rm -r "$folder"; touch "$folder"', "it cannot be read: Not a directory"
    ),
    "odd names": HostileTask(
        _python(
            "import os\n"
            'folder = os.path.dirname(os.environ["PHALANX_CHECKPOINT_OUT"])\n'
            'names = [b"a\\nb", b"\\xff\\xfe", b"-rf", b"*", b"n" * 255]\n'
            "for name in names:\n"
            '    open(os.path.join(os.fsencode(folder), name), "w").close()\n'
            'os.mkdir(os.path.join(folder, "closed"), 0)'
        ),
    ),
    "deep folders": HostileTask(
        _python(
            "import os\n"
            'os.chdir(os.path.dirname(os.environ["PHALANX_CHECKPOINT_OUT"]))\n'
            "for _ in range(500):\n"
            '    os.mkdir("d" * 200)\n'
            '    os.chdir("d" * 200)'
        ),
    ),
    "many files": HostileTask(
        _python(
            "import os\n"
            'os.chdir(os.path.dirname(os.environ["PHALANX_CHECKPOINT_OUT"]))\n'
            "for number in range(100_000):\n"
            '    os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))'
        ),
    ),
    "progress without json": HostileTask(
        """yes '{' | head -c 3000000 >"$progress"; echo '{"step": 1e999}' >>"$progress" """,
        'the progress file has a line that is not progress: "{"; append lines like',
    ),
    "progress without a newline": HostileTask(
        """printf 'step 7' >"$progress" """, 'a line that is not progress: "step 7"'
    ),
    "sparse progress": HostileTask(
        'truncate -s 8T "$progress"', "the progress file has a line of more than 64.0 KiB"
    ),
    "a million values": HostileTask(
        r"""awk 'BEGIN { printf "{\"values\": {"; for (n = 0; n < 1000000; n++)
        printf "\"v%d\": 1,", n; print "\"w\": 1}}" }' >"$progress" """,
        "the progress file has a line of more than 64.0 KiB",
    ),
    "many values": HostileTask(
        """for n in $(seq 99); do echo '{"step": 1, "values": {"v'$n'": 1}}'; done >"$progress" """,
        "the progress file has more than 16 values; the others are ignored",
    ),
    "values that are no numbers": HostileTask(
        """echo '{"step": 1, "values": {"loss": [[[{}]]]}}' >"$progress" """,
        "the progress file has a line that is not progress",
    ),
    "progress directory": HostileTask(
        'mkdir -p "$progress/deeper"',
        "the progress file is a directory; append lines like",
    ),
    "closed output": HostileTask("exec >&- 2>&-"),
    "output without a newline": HostileTask("head -c 200000000 /dev/zero"),
    "daemon": HostileTask("(setsid sleep 1000 >&- 2>&- &)"),
    "many processes": HostileTask(
        """bomb() { [ "$1" = 0 ] || { bomb $(($1-1)) & bomb $(($1-1)) & wait; }; sleep 1000; }
        (trap '' TERM; bomb 6) &"""
    ),
}
