"""Release labs from solutions, check and grade what comes back, and report.

``release`` turns ``solutions/NN_name.ipynb`` into ``labs/NN_name.ipynb``; ``graft`` puts a student's answers into the
pristine lab; ``check`` and ``grade`` run the result.  The commands are in :mod:`utils.grading.commands`.

Nothing is imported here: each command loads only what it needs.
"""
