"""Reports as HTML files: one template engine (Jinja2), one style (that of the live page), no script.

pages.py      the engine: renders a template, writes the file
curves.py     the geometry of curves, pure
templates/    one template for each report, and shared parts (`base.html`, `parts.html`)

`cli/drill/records/page.py` and `cli/plan/page.py` make the values of their templates.

A report is one file that loads nothing and runs nothing: it can be mailed, printed, and opened from any disk. Jinja2
escapes every text.
"""
