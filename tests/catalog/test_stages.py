"""The stage that a process is at, and signs that its work goes on."""

from common.catalog import stages


def test_the_innermost_stage_is_told_and_each_change_is_a_sign():
    before = stages.now()[1]
    with stages.stage("outer"):
        with stages.stage("inner"):
            assert stages.now()[0] == "inner"
        name, sign = stages.now()
        assert (name, sign > before) == ("outer", True)
        stages.advance()
        assert stages.now()[1] != sign
    assert stages.now()[0] == ""
