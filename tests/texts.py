"""Files of steps, scripts and listings that tests need, as text: ``texts.toml`` of their folder; "" is this one."""

from pathlib import Path

from common.catalog import store


def of(folder: str) -> dict[str, str]:
    """The texts of a folder of tests by name."""
    return store.read_toml(Path(__file__).parent / folder / "texts.toml")
