"""What runs on the far side of the boundary, on every rank: one module per lab.

A probe gets the student's functions and plain arguments, makes the tensors and models that the functions work on,
calls them, and returns plain data.
"""
