"""What the programs python -m flashlatent.* have in common: what they refuse, their files, and streams that end."""

import argparse
import functools
import json
import os
import signal
import sys


class Refused(Exception):
    """Wrong usage or input: a line for stderr; the program ends with 2."""


def named(name):
    """Decorates a main(arguments): a Refused is printed on stderr behind the program's name, and 2 is returned."""

    def decorate(main):
        @functools.wraps(main)
        def call(arguments=None):
            try:
                return main(arguments)
            except Refused as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2

        return call

    return decorate


def leave(main):
    """Runs a program's main() and leaves the process with what it returned. Says nothing, and ends by the signal, where
    a reader has closed the pipe or the user has pressed ^C; ends with 2 where stdout cannot be written."""
    try:
        if sys.stdout is None:
            raise OSError(0, "it is closed")
        code = main()
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt) as error:
        ending = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE
        signal.signal(ending, signal.SIG_DFL)
        os.kill(os.getpid(), ending)
    except OSError as error:
        if error.filename is not None:  # of a file
            raise
        print(f"flashlatent: stdout cannot be written: {error.strerror}", file=sys.stderr)
        if sys.stdout is not None:  # what it still holds would be tried again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 2
    sys.exit(code)


def counts(text):
    """A type for argparse: whole numbers from 1, separated by commas."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': whole numbers from 1, separated by commas, are accepted")
    return found


def check_writable(option, path):
    """Before a run whose results go there."""
    if not path:
        raise Refused(f"{option} is '{path}': is no file's name")
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise Refused(f"{option} is '{path}': is a directory; a file is expected")
    if not os.path.isdir(folder):
        raise Refused(f"{option} is '{path}': there is no folder '{folder}'")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Refused(f"{option} is '{path}': cannot be written")


def a_case_a_line(document):
    """JSON with a line for each field; where a field's members are lists or objects, such as the cases of `results`,
    with a line for each member."""
    def brief(value):
        return json.dumps(value, separators=(",", ":"))

    def field(value):
        members = value.values() if isinstance(value, dict) else value
        if not isinstance(value, (dict, list)) or not value or not all(isinstance(x, (dict, list)) for x in members):
            return brief(value)
        keys = [f"{brief(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
        first, last = "{}" if isinstance(value, dict) else "[]"
        return first + ",".join(f"\n  {key}{brief(x)}" for key, x in zip(keys, members)) + f"\n {last}"

    return "{" + ",".join(f"\n {brief(key)}: {field(value)}" for key, value in document.items()) + "\n}"


def write_json(option, path, document):
    try:
        with open(path, "w") as file:
            file.write(a_case_a_line(document) + "\n")
    except OSError as error:
        raise Refused(f"{option} is '{path}': cannot be written: {error.strerror}") from None
