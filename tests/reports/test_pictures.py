"""Figures share one style, and a page of them needs no network."""

import re

import pytest

from lastlayer.reports import pictures


def test_a_figure_with_and_without_panels():
    plain = pictures.new_figure("a title of words " * 10)
    assert "<br>" in plain.layout.title.text
    assert max(map(len, plain.layout.title.text.split("<br>"))) <= pictures.TITLE_WIDTH
    panels = pictures.new_figure(panels=["one", "two", "three"], rows=2)
    assert [each.text for each in panels.layout.annotations] == ["one", "two", "three"]
    assert panels.layout.xaxis4.anchor is None or panels.layout.xaxis3.anchor  # two rows of two
    assert plain.layout.template == panels.layout.template


def test_a_page_holds_plotly_once_and_asks_nobody():
    figures = [pictures.new_figure(name).add_bar(x=[1], y=[2]) for name in ("one", "two")]
    page = pictures.html_page("a <b> title", figures)
    assert page.count("<h1>a &lt;b&gt; title</h1>") == 1
    assert page.count("plotly.js v") == 1
    assert not re.search(r'<script[^>]+src="http', page)


def test_a_picture_without_kaleido_says_what_to_install(tmp_path, monkeypatch):
    figure = pictures.new_figure("one")

    def refuse(*_, **__):
        raise ValueError("\nImage export requires kaleido\nand more\n")

    monkeypatch.setattr(type(figure), "to_image", refuse)
    with pytest.raises(ImportError, match=r"^Image export requires kaleido \(pip install 'lastlayer\[pictures\]'\)$"):
        pictures.write_picture(figure, tmp_path / "a.svg")
