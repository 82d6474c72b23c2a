"""Pages for a browser: self-contained HTML that needs no network, in light, dark and print.

`page` is the frame that all pages share, `charts` the Vega-Lite charts and their library; the others say what is on
one kind of page.
"""
