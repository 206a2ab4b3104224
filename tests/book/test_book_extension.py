"""Names of steps and terms become links, where a reader meets them."""

import pytest

pytest.importorskip("docutils", reason="the book needs Sphinx: make book")

from docutils import nodes

from common.book import extension


class Builder:
    def get_relative_uri(self, here, to):
        return f"{here}>{to}"


@pytest.fixture
def mentions():
    """A transform of a document of these paragraphs' nodes."""

    def mentions(*paragraphs):
        document = nodes.document(None, None)
        for paragraph in paragraphs:
            document += paragraph
        made = extension.Mentions.__new__(extension.Mentions)
        made.document = document
        return made

    return mentions


def test_a_term_is_linked_where_it_is_first_said(mentions):
    code = nodes.paragraph("", "", nodes.literal("", "sector"))
    first = nodes.paragraph("", "Two Sectors, one sector and a detector.")
    made = mentions(code, nodes.title("", "sector"), first, nodes.paragraph("", "A sector."))
    made._terms({"sector": "sector"}, "here", Builder())
    found = list(made.document.findall(nodes.reference))
    assert [(one.astext(), one["refuri"]) for one in found] == [("Sectors", "here>#sector")]
    assert first.astext() == "Two Sectors, one sector and a detector."


def test_a_table_s_head_has_no_links(mentions):
    head = nodes.thead(
        "", nodes.row("", nodes.entry("", nodes.paragraph("", "step", nodes.literal("", "gemm_naive"))))
    )
    made = mentions(head)
    made._terms({"step": "step"}, "here", Builder())
    made._steps({"gemm_naive": "lessons/x"}, {}, "here", Builder())
    assert not list(made.document.findall(nodes.reference))


@pytest.fixture(autouse=True)
def glossary(monkeypatch):
    class Config:
        workbook_glossary = ""

    monkeypatch.setattr(extension.Mentions, "config", Config, raising=False)


def test_a_step_leads_to_its_code_and_first_to_its_trace(mentions):
    text = nodes.paragraph("", "", nodes.literal("", "gemm_naive"), nodes.literal("", "gemm_naive"))
    other = nodes.paragraph(
        "", "", nodes.literal("", "gemm"), nodes.reference("", "", nodes.literal("", "gemm_naive"))
    )
    made = mentions(text, other)
    made._steps({"gemm_naive": "lessons/x"}, {"gemm_naive": "explore/gemm_naive.html"}, "a/b/c", Builder())
    found = [(one.astext(), one.get("refuri")) for one in made.document.findall(nodes.reference)]
    assert found == [
        ("gemm_naive", "a/b/c>lessons/x"),
        ("trace", "../../explore/gemm_naive.html"),
        ("gemm_naive", "a/b/c>lessons/x"),
        ("gemm_naive", None),
    ]
