"""What a worker leaves behind is removed, and nothing beside it is touched."""

import stat

from common.workers import keeper


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_goes_with_what_nobody_may_read(tmp_path):
    inner = tmp_path / "worker" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    inner.parent.chmod(0)
    keeper.remove(tmp_path / "worker")
    assert not (tmp_path / "worker").exists()


def test_what_it_lies_in_and_what_it_points_to_stay_as_they_are(tmp_path):
    """A worker's folder lies in the machine's own for temporary files: others need to read that."""
    around, beside = tmp_path / "around", tmp_path / "beside"
    for folder in (around, beside):
        folder.mkdir()
        folder.chmod(0o755)
    (beside / "file").touch()
    (around / "worker").mkdir()
    (around / "worker" / "link").symlink_to(beside)
    for _ in range(2):  # the second time there is nothing to remove
        keeper.remove(around / "worker")
        assert not (around / "worker").exists()
        assert (mode(around), mode(beside)) == (0o755, 0o755)
    assert (beside / "file").exists()
