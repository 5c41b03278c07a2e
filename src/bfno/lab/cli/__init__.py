"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import sys

__all__ = ["keep_freed_memory", "main"]

# How often an OpenMP thread checks whether the others are done before it sleeps. Without a bound it
# checks for milliseconds, on a core that another program may be waiting for.
_LOOKS = ("GOMP_SPINCOUNT", "1000")
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: The words after the program's name; None takes those of this process.
    """
    if sys.platform == "win32":  # runs are locked and synced as only Unix can
        sys.stderr.write("error: Windows: is not supported. Fix: use Linux, macOS or WSL\n")
        return 2
    if sys.stderr is None:  # closed with `2>&-`: its number must not become that of a file
        nowhere = io.FileIO(os.open(os.devnull, os.O_WRONLY), "w")
        sys.stderr = io.TextIOWrapper(nowhere, write_through=True)
    if sys.stdout is None:
        fix = "redirect it, for example to /dev/null"
        sys.stderr.write(f"error: standard output: is closed. Fix: {fix}\n")
        return 3
    for stream in (sys.stdout, sys.stderr):
        # Characters that a terminal or a locale cannot show must not cause a failure.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault(*_LOOKS)  # now: it is read when torch is imported
    keep_freed_memory()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # an option of every command, in any position
    try:
        code = _run([word for word in words if word != "--debug"])
        sys.stdout.flush()  # now, while a failure can still be reported
        return code
    except Exception as error:
        if debug:
            import traceback

            from bfno.lab.cli.terminal import say_text

            say_text(traceback.format_exc(), error=True)
        return _tell(error)
    except KeyboardInterrupt:
        return 130


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, where it is glibc's.

    Otherwise large blocks go back to the system, which clears them before it hands them out again:
    up to a third of the time of a training on series. This concerns the whole process, so a program
    may decide it, a library may not.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def _run(words: list[str]) -> int:
    # Every import is made in here: a Ctrl-C that comes during one is caught like any other.
    import logging

    from bfno.lab.cli.commands import app
    from bfno.lab.cli.terminal import PrintableFormatter

    notes = logging.StreamHandler(sys.stderr)
    notes.setFormatter(PrintableFormatter("note: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[notes])
    result = app(args=words, prog_name="bfno", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _tell(error: Exception) -> int:
    """Print one line for an error, if that is possible, and return its exit code."""
    line, code = _explained(error)
    with contextlib.suppress(OSError):
        if line:
            from bfno.lab.cli.terminal import say

            say(line, error=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # To nowhere: Python would try again at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def _explained(error: Exception) -> tuple[str, int]:
    """The line that reports an error, and its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has enough
        return "", 0
    what = str(error)
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
        why = (error.strerror or what).lower()
        what, code = f"output: cannot be written: {why}. Fix: free space, or write elsewhere", 3
    elif hasattr(error, "fix"):
        code = int(getattr(error, "exit_code", 1))
    elif hasattr(error, "format_message"):  # click's: the words themselves are wrong
        usage = str(error.format_message()).rstrip(".?")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bfno"
        what, code = f"command line: {usage}. Fix: see `{command} --help`", 2
    elif hasattr(error, "exit_code"):  # Stopped by a signal, and all processes together
        is_first = os.environ.get("RANK", "0") == "0"
        line = f"{what}; `bfno resume` continues from here" if is_first else ""
        return line, int(error.exit_code)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(error, ModuleNotFoundError) and error.name not in (None, "bfno"):
        what, code = f"{error.name}: is not installed. Fix: pip install 'bfno[train,report]'", 2
    elif isinstance(error, MemoryError) or "can't allocate memory" in what:
        what, code = "memory: there is not enough. Fix: lower train.batch with --set", 4
    else:
        kind = type(error).__name__
        first = what.splitlines()[0] if what else kind
        what, code = f"internal: {kind}: {first}. Fix: run again with --debug and report it", 1
    return "error: " + " ".join(what.split()), code
