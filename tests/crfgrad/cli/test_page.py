"""What docs/refine.md says can be done."""

import re
import shlex
from pathlib import Path

import pytest

from crfgrad.cli.command import parser

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "refine.md").read_text()


def test_commands_are_understood() -> None:
    commands = re.findall(r"```text\n(crfgrad .*?)```", PAGE, re.DOTALL)
    assert len(commands) == 2
    for command in commands:
        parser().parse_args(shlex.split(command.replace("\\\n", ""))[1:])


def test_the_script_makes_what_the_command_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = re.search(r"```py\n(.*?)```", PAGE, re.DOTALL)
    assert script
    exec(compile(script[1], "docs/refine.md", "exec"), {})
    for folder in ("images", "probabilities", "truth"):
        assert len(list((tmp_path / "scenes" / folder).iterdir())) == 12
    assert (tmp_path / "scenes" / "names.txt").read_text().split() == ["sky", "meadow", "house", "tree"]
