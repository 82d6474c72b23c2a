"""Plans inside a training script: shardings for its parameters, plans for its devices, measurements of its steps.

The only modules that import a framework, each when it is called.
"""
