"""`python -m cosnorm`, and the command `cosnorm`."""

import sys


def main() -> None:
    try:
        from cosnorm.cli import main as program
    except ModuleNotFoundError as missing:
        if (missing.name or "cosnorm").startswith("cosnorm"):
            raise
        sys.exit(
            f"the commands need the package {missing.name!r}: "
            'install them with pip install "cosnorm[all]"'
        )
    except KeyboardInterrupt:
        sys.exit(130)
    program()


if __name__ == "__main__":
    main()
