"""Changes of files while a candidate runs."""

from pathlib import Path

from fk_plugin.bench.files import Seal


def test_a_change_is_named_and_left_alone(tmp_path: Path) -> None:
    """The change may be the user's own work in an editor; putting the old text back would lose it."""
    file = tmp_path / "tolerances.py"
    file.write_text("old")
    seal = Seal((file,))
    assert seal.broken() == []
    file.write_text("new")
    assert seal.broken() == ["tolerances.py"]
    assert file.read_text() == "new"
    file.unlink()
    assert seal.broken() == ["tolerances.py"]
