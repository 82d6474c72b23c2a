"""A local web page that answers while one turns the knobs: the search behind a form.

`asking` says what may be asked, `answering` answers and remembers, `app` speaks HTTP.
"""
