"""The command line: wrong words end with status 2 and a sentence, before any work."""

from pathlib import Path

import pytest

from fk_plugin.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["benhc"], "invalid choice"),
        (["e2e"], "required"),
        (["list", "kernel"], "invalid choice"),
        (["e2e", "vllm", "--model", "m", "--requests", "many"], "invalid int value"),
        (["e2e", "vllm", "--model", "m", "--json", "{tmp}/file/x.json"], "its folder cannot be made"),
        (["bench", "silu_and_mul", "--json", "{tmp}/file/x.json"], "its folder cannot be made"),
        (["bench", "silu_and_mul", "--json", "{tmp}"], "is a folder"),
        (["e2e", "vllm", "--model", "m", "--json", "{tmp}"], "is a folder"),
        (["bench", "silu_and_mull"], "did you mean silu_and_mul"),
    ],
)
def test_wrong_words(arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main([a.format(tmp=tmp_path) for a in arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("fk: ")
    assert "Traceback" not in said
