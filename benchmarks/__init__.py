"""How fast the course is, and beside what: `python -m benchmarks` measures everything and writes RESULTS.md.

Each module measures one subject, runs alone (`python -m benchmarks.theory [--quick]`) and prints its tables as
Markdown. What they share is in `measure` (turns, medians, tables) and `machine` (where it was measured).
"""
