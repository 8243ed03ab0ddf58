"""Checks of the labs' exercises: one module per lab, one function per question.

A check never touches a student's function. It asks :mod:`utils.checks.boundary` for ``call(inputs) -> outputs``, where
both sides are plain data, and looks at the values, at what was sent to whom, and at the replicas.

boundary     the one narrow way to a student's function
verdict      how a check says what is wrong
numbers      formulas as answers, compared number by number
probes       what runs on the far side of the boundary: makes tensors and models, calls the student's function
all_reduce   lab 01
zero         lab 02
tensor       lab 03
pipeline     lab 04
layout       lab 05
"""
