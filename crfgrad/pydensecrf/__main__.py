"""python -m crfgrad.pydensecrf SCRIPT [ARGUMENTS]: runs a script that imports pydensecrf, with crfgrad in its place."""

import runpy
import sys
from pathlib import Path

from crfgrad.pydensecrf import install


def main() -> None:
    """Runs the script as Python would."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    script = Path(sys.argv[1])
    if not script.is_file():
        raise SystemExit(f"there is no file {script} to run")
    sys.argv = sys.argv[1:]
    sys.path[0] = str(script.resolve().parent)
    install()
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
