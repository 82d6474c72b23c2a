"""Plans that run: an exported plan is executed or compiled by its framework, and compared with what was planned.

`verify` starts one of the `programs` in a process of its own, so that nothing here needs a framework.
"""
