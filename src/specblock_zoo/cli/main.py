"""Entry point `specblock`: one exit code and one paragraph for every mistake a user can make."""

import sys

from specblock_zoo.errors import SpecBlockError

USER_ERROR = 2


def main(argv: list[str] | None = None) -> int:
    """Runs `specblock ARGV` and returns the exit code: 0 done, 2 a user mistake (explained on stderr).

    Args:
        argv: arguments without the program's name; default `sys.argv[1:]`.

    Raises:
        SystemExit: from the parser, for `--help` and usage errors, and from commands with their own exit code.
    """
    try:
        # Imported here so that a mistake inside an import (a missing optional package) is explained like any other.
        from specblock_zoo.cli.train import run

        run(with_underscores(sys.argv[1:] if argv is None else argv))
    except SpecBlockError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return USER_ERROR
    return 0


def with_underscores(argv: list[str]) -> list[str]:
    """Takes `--max-nodes=3` for `--max_nodes=3`, as our flags are spelled; nothing behind `--` is a flag."""
    end = argv.index("--") if "--" in argv else len(argv)
    flags = (word.partition("=") if word.startswith("--") else ("", "", word) for word in argv[:end])
    return [name.replace("-", "_").replace("__", "--", 1) + sign + value for name, sign, value in flags] + argv[end:]


if __name__ == "__main__":
    sys.exit(main())
