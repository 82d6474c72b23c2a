"""A traced program as a `Graph`: blocks that repeat, operators by kind, dims by name, so that pipelines can cut it.

`model_of` is the way in. Steps: what is constant goes (`plain`), loops become kernels and products get a role
(`kernels`), kernels are dealt to blocks (`stages`), dims get names (`naming`), kernels become operators (`writing`).
"""
