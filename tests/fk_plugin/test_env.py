"""The environment variables."""

from pathlib import Path

import pytest

from fk_plugin import env
from fk_plugin.errors import UsageError


def test_defaults_touch_nothing() -> None:
    settings = env.read({})
    assert settings.mode is env.Mode.AUTO
    assert settings.kernels == ""
    assert settings.proof_dir is None
    assert not settings.trace
    assert not settings.device_counters


def test_values_are_parsed() -> None:
    settings = env.read({"FK_PLUGIN": " Strict ", "FK_KERNELS": "a=b", "FK_PROOF_DIR": "/x", "FK_CACHE_DIR": "/c"})
    assert settings.mode is env.Mode.STRICT
    assert (settings.kernels, settings.proof_dir, settings.cache_dir) == ("a=b", Path("/x"), Path("/c"))


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"FK_PLUGIN": "on"}, "off, auto or strict"),
        ({"FK_TRACE": "yes"}, "FK_TRACE must be 0 or 1"),
        ({"FK_TRACE": "1"}, "needs FK_PLUGIN=off"),
        ({"FK_TRACE": "1", "FK_PLUGIN": "off"}, "needs FK_PLUGIN=off and FK_PROOF_DIR"),
        ({"FK_DEVICE_COUNTERS": "1"}, "needs FK_PROOF_DIR"),
    ],
)
def test_bad_values_are_refused_with_what_to_do(variables: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        env.read(variables)


def test_every_variable_is_documented_in_the_readme() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    text = readme.read_text()
    assert [v.name for v in env.VARIABLES if v.name not in text] == []
