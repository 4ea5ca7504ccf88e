"""No figure in the documents that is not in a result file."""

from report import BEGIN, END, ROOT, benchmarks, readme


def test_the_benchmarks_page_is_the_generated_one():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks()


def test_the_readme_holds_the_generated_table():
    text = (ROOT / "README.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert readme(text) == text
