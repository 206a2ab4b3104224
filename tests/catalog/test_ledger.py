"""The stage that a process is at, and signs that its work goes on."""

from common.catalog import ledger


def test_the_innermost_stage_is_told_and_each_change_is_a_sign():
    before = ledger.now()[1]
    with ledger.stage("outer"):
        with ledger.stage("inner"):
            assert ledger.now()[0] == "inner"
        name, sign = ledger.now()
        assert (name, sign > before) == ("outer", True)
        ledger.advance()
        assert ledger.now()[1] != sign
    assert ledger.now()[0] == ""
