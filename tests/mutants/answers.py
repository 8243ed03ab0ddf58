"""A lab's answers as a kernel holds them: the solution's, the blank lab's, and the solution with one answer wrong."""

import ast
from pathlib import Path

from utils.grading.notebook import grade_id, is_answer, is_check, read
from utils.grading.sandbox import Sandbox
from utils.grading.selfcheck import mutants_of
from utils.grading.verify import verifier_of

ROOT = Path(__file__).parents[2]
GIVEN = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


class Answers:
    """The answers of a lab, by its name, such as "03_megatron_ffn_split"."""

    def __init__(self, name):
        self.solution, self.lab = (ROOT / folder / f"{name}.ipynb" for folder in ("solutions", "labs"))
        self.mutants = mutants_of(self.solution)

    def right(self):
        """The solution's names."""
        return self._namespace(self.solution, {})

    def blank(self):
        """The names of the lab as a student gets it."""
        return self._namespace(self.lab, {})

    def with_mutant(self, mutant):
        """The solution's names with one answer wrong."""
        return self._namespace(self.solution, {mutant.answer: mutant.source})

    def verified(self, questions, wrong, seed):
        """What the verify stage finds in the solution with some answers wrong, `{grade_id: mutant's name}`."""
        sources = {mutant.path.stem: mutant.source for mutant in self.mutants}
        notebook = read(self.solution)
        for cell in notebook.cells:
            if grade_id(cell) in wrong:
                cell.source = sources[wrong[grade_id(cell)]]
        verifier = verifier_of(read(self.lab), ROOT, Sandbox(), seed=seed)
        try:
            return verifier(notebook, questions)
        finally:
            verifier.close()

    def message(self, name):
        """What a mutant is told."""
        return next(mutant.message for mutant in self.mutants if mutant.path.stem == name)

    @staticmethod
    def _namespace(path, others):
        """What a kernel holds after the imports, the tools and the answers of a notebook."""
        namespace = {"__name__": "__main__"}
        for cell in read(path).cells:
            if cell.cell_type != "code" or is_check(cell):
                continue
            source = others.get(grade_id(cell), cell.source)
            tree = ast.parse(source)
            if not is_answer(cell):
                tree.body = [node for node in tree.body if isinstance(node, GIVEN)]
            exec(compile(tree, f"<cell {grade_id(cell)}>", "exec"), namespace)
        return namespace
