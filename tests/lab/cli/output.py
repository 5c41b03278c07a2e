"""What the program printed."""


def error_line(capsys) -> str:
    """The one line that an error prints."""
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1 and printed.err.startswith("error: ")
    assert ". Fix: " in printed.err
    return printed.err
