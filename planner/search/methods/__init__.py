"""Other ways to search the same space, compared on the same evaluator."""
