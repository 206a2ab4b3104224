"""The microscope's page says what the trace says: the same sums, in one file."""

import json
import re

import mutants
import pytest

from common.catalog import catalog, store
from common.cli import main
from common.report import book, traces
from common.trace import trace

NAMES = ["gemm_naive", "conv2d_unroll_gemm", "hgemm_specialised"]
PAIR = ["gemm_shared_tile", "gemm_register_blocked"]


def script_data(text):
    """What a page's script reads: by step its name, sources and trace."""
    return json.loads(text.partition('id="trace">')[2].partition("</script>")[0])


def shown(*names):
    return [(name, traces.load(catalog.find(name))) for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_s_data_are_the_trace_s(name):
    step = catalog.find(name)
    (found,) = trace.results([trace.task(step, traces.problem(step))])
    (data,) = script_data(book.page(shown(name)))
    assert data["sources"][store.shown(step.path)] == step.path.read_text().splitlines()
    assert [kernel["name"] for kernel in data["trace"]["kernels"]] == [kernel.name for kernel in found.kernels]
    for told, kernel in zip(data["trace"]["kernels"], found.kernels, strict=True):
        sums = dict.fromkeys(traces.UNITS, 0)
        for access in told["accesses"]:
            sums[access["space"]] += access["moved"]
        expected = {space: sum(a.moved for a in kernel.accesses if a.space == space) for space in sums}
        assert sums == expected
        assert (told["fma"], told["fma_lines"]) == (kernel.fma, kernel.fma_lines)
        if kernel.totals["load_sectors"] and not kernel.totals["copy_sectors"]:
            reads = [a for a in told["accesses"] if a["space"] == "global" and a["op"] == "read"]
            assert sum(a["moved"] for a in reads) == kernel.totals["load_sectors"]


def test_one_file_without_links():
    text = book.page(shown(*PAIR))
    assert len(text.encode()) < 200_000
    markup = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)=|url\(|@import", markup)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_pair_says_why_one_is_slower():
    said = [book.sentence(*one) for one in shown(*PAIR)]
    assert said[0].startswith("Load instructions of gemm_shared_tile for each multiply-add: ")
    assert [re.search(r"([\d.]+) from shared memory", text)[1] for text in said] == ["2", "0.0625"]
    assert all(sentence in book.page(shown(*PAIR)) for sentence in said)


def test_names_and_source_are_escaped(write):
    step = catalog.find("gemm_naive")
    file = write("a&b<i>.py", step.path.read_text() + "\n# </script><b>\n")
    kept = traces.load(step)
    kept["kernels"][kept["main"]]["file"] = str(file)
    text = book.page([("a&b<i>.py", kept)])
    assert "<i>.py" not in text.partition('id="trace">')[0]
    assert text.count("</script>") == 3
    assert script_data(text)[0]["sources"]["a&b<i>.py"][-1] == "# </script><b>"


def test_the_book_s_pages_are_those_of_all_steps(tmp_path):
    kept = {name: traces.load(catalog.find(name)) for name in ("gemm_naive", "gemm_shared_tile", "gemm_coarsened")}
    (tmp_path / "explore").mkdir()
    (tmp_path / "explore" / "index.html").write_text("")
    book.write(tmp_path, kept)
    found = {path.name for path in (tmp_path / "explore").iterdir()}
    assert found == {
        "index.html", "gemm_naive.html", "gemm_shared_tile.html", "gemm_coarsened.html",
        "gemm_naive-gemm_shared_tile.html", "gemm_shared_tile-gemm_coarsened.html",
    }  # fmt: skip
    text = (tmp_path / "explore" / "gemm_shared_tile.html").read_text()
    assert '<a href="gemm_naive-gemm_shared_tile.html">beside gemm_naive</a>' in text
    assert '<a href="gemm_shared_tile-gemm_coarsened.html">beside gemm_coarsened</a>' in text
    assert '<a href="../lessons/02_shared_tiling/gemm_shared_tile.code.html">' in text
    assert script_data(text) == script_data(book.page(shown("gemm_shared_tile")))


# --- the command ---


def test_trace_html_writes_the_page(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["trace", "gemm_naive", "--html", str(out)]) == 0
    assert f"written: {out}" in capsys.readouterr().out.replace("\n", "")
    assert out.read_text() == book.page(shown("gemm_naive"))


def test_trace_html_of_a_wrong_kernel_tells_its_faults(tmp_path, root, capsys):
    out, file = tmp_path / "page.html", mutants.path("gemm_missing_barrier")
    assert main(["trace", "gemm_shared_tile", "--file", str(file), "--html", str(out)]) == 1
    (data,) = script_data(out.read_text())
    assert data["name"] == "gemm_missing_barrier.py"
    assert data["trace"]["kernels"][0]["faults"][0]["text"] in capsys.readouterr().out.replace("\n", " ")
    above = out.read_text().partition('<div id="explorer">')[0]
    assert "gemm_missing_barrier.py is wrong: 2 faults." in above
    assert all(fault["text"] in above for fault in data["trace"]["kernels"][0]["faults"])
