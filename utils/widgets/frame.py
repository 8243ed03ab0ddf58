"""The layout that all widgets of the course share: presets, controls, a computed sentence, a picture, real ranks on request.

    Frame(controls, draw, say, measure)

`draw` and `say` are pure functions of the controls' values, so a lesson, a test and a page without a kernel can
call them too. This module adds what makes them a widget:

Redraw. The picture is drawn by matplotlib's Agg into one figure that is emptied and used again, written as a PNG of
few colours and put into an `ipywidgets.Image`: no pyplot, so no figure is left open, and no Output widget. A state
that is already shown is not drawn again, and a preset that moves three controls is one redraw. A dragged slider
needs no timer: the front end sends a slider's next value only when the kernel has finished with the one before,
and only the latest (ipywidgets' message throttle), so events never queue up behind a slow redraw.

Real ranks. The button calls `measure` in a thread, so that the sliders go on working and a second press, which
arrives while the first still runs, finds the run going on and does nothing; the button shows an hourglass and is not
disabled, since a disabled button loses the keyboard's focus. What fails becomes a sentence under
the button; `launch` leaves no ranks behind however it ends. Results are kept in `runs`, the latest one of each state,
and `draw` and `say` get all of them: each decides which belong to the state that it shows.

Static picture. A frame shows itself as one output with several forms: the live view, a PNG with the sentence above
the picture, and the sentence as plain text. A front end takes the best form that it can show, so a reader with a
kernel sees the widget and a page made by nbconvert or GitHub shows the picture, and nobody sees both. JupyterLab
prefers the live view even when its kernel is gone, and then shows an error line; so notebooks are stored without it
(`without_live_views`). nbval compares the plain text, which is the same in every run, and ignores the other two.
"""
import base64
import html
import threading
from types import SimpleNamespace

import ipywidgets

from utils.ranks import RankError
from utils.widgets import style

LIVE_VIEW = "application/vnd.jupyter.widget-view+json"
YOUR_OWN = "your own"
READY, RUNNING = "play", "hourglass-half"
"""The icon of the button for real ranks, before and during a run."""


class Frame(ipywidgets.VBox):
    """Presets above; controls on the left; one computed sentence above a picture on the right, a button for real ranks below.

    controls   {name: ipywidgets control}; the names are the keyword arguments of the functions below
    draw       draw(figure=…, runs=…, **values) -> matplotlib Figure, drawn on `figure`
    say        say(runs=…, **values) -> one sentence
    measure    measure(**values) -> a result, appended to `runs`; None: no button
    presets    {label: {name: value}}, shown as a dropdown; values are set in the order given
    extras     widgets shown below the controls that are no part of the state, such as a play button
    announce   announce(**values) -> what the line beside the button says during a run

    A ValueError or RankError that one of the functions raises is shown as its sentence.
    """

    def __init__(self, controls, draw, say, measure=None, presets=None, extras=(), announce=None):
        self.controls, self.runs = SimpleNamespace(**controls), ()
        self._names, self._draw, self._say, self._measure = tuple(controls), draw, say, measure
        self._announce = announce or (lambda **values: "Running on real ranks …")
        self._drawing_lock, self._presets, self._hold, self._shown = threading.RLock(), presets or {}, False, None
        self._figure, self._run_thread, self.text, self._results = None, None, "", []

        self.sentence, self.note = ipywidgets.HTML(), ipywidgets.HTML()
        self.picture = ipywidgets.Image(format="png", layout={"width": "100%", "max_width": "900px", "height": "auto",
                                                              "margin": "0"})
        self.button = ipywidgets.Button(description="Run on real ranks", icon=READY, button_style="primary",
                                        tooltip="Start processes, measure, and lay the result over the theory",
                                        layout={"width": "auto"})
        self.preset = ipywidgets.Dropdown(options=[*self._presets, YOUR_OWN], description="preset")
        for control in (self.preset, *controls.values()):
            control.style.description_width = "76px"
            control.layout.width = "auto"
        self.preset.layout.max_width = "420px"  # its texts are too long for the column below

        left = ipywidgets.VBox([*controls.values(), *extras],
                               layout={"flex": "1 1 285px", "max_width": "420px", "padding": "0 12px 0 0"})
        below = [ipywidgets.HBox([self.button, self.note], layout={"flex_flow": "row wrap", "align_items": "center"})]
        right = ipywidgets.VBox([self.sentence, self.picture, *(below if measure else [])],
                                layout={"flex": "2.6 1 540px", "min_width": "0"})
        columns = ipywidgets.HBox([left, right], layout={"flex_flow": "row wrap", "align_items": "flex-start"})
        super().__init__([*([self.preset] if presets else []), columns])

        self.redraw()
        for control in controls.values():
            control.observe(lambda change: self.redraw(), "value")
        self.preset.observe(self._take_preset, "value")
        self.button.on_click(lambda button: self.run())

    @property
    def values(self) -> dict:
        """{name: value} of the controls: the state that is shown."""
        return {name: getattr(self.controls, name).value for name in self._names}

    @property
    def running(self) -> bool:
        """Whether real ranks are at work for this widget."""
        return self._run_thread is not None

    def redraw(self) -> None:
        """Bring sentence and picture up to date, if the state or the runs have changed."""
        with self._drawing_lock:
            state = (self.values, self.runs)
            if self._hold or state == self._shown:
                return
            self._shown = state
            self._name_preset()
            try:
                sentence = self._say(runs=self.runs, **self.values)
                self._figure = self._draw(figure=self._figure, runs=self.runs, **self.values)
            except ValueError as error:
                if self._figure is None:
                    raise  # the first state is the author's: nobody moved a control yet
                self._show_note(str(error), trouble=True)
                return
            if not self.running:
                self._show_note("")
            self.text = sentence
            self.sentence.value = f'<div role="status" style="line-height: 1.4">{html.escape(sentence)}</div>'
            self.picture.value = style.png(self._figure)

    def run(self) -> threading.Thread | None:
        """What the button does: measure the present state in a thread. None when a run is already going on."""
        with self._drawing_lock:
            if self.running:
                return None
            values = self.values
            self._run_thread = threading.Thread(target=self._run, args=(values,), daemon=True)
            self.button.icon = RUNNING
            self._show_note(self._announce(**values))
            thread = self._run_thread
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads: then here, while the sliders wait
            self._run(values)
            return None
        return thread

    def _run(self, values):
        trouble = ""
        try:
            result = self._measure(**values)
            self._results = [kept for kept in self._results if kept[0] != values] + [(values, result)]
            self.runs = tuple(result for _, result in self._results)
            self.redraw()
        except (RankError, ValueError) as error:
            trouble = str(error)
        except Exception as error:  # a reader cannot see this thread's traceback
            trouble = f"The run failed with {type(error).__name__}: {error}"
        with self._drawing_lock:
            self._show_note(trouble, trouble=True)
            self._run_thread = None
            self.button.icon = READY

    def _take_preset(self, change):
        values = self._presets.get(change["new"])
        if values is None or self._hold:
            return
        with self._drawing_lock:
            self._hold = True
            try:
                for name, value in values.items():
                    getattr(self.controls, name).value = value
            finally:
                self._hold = False
            self.redraw()

    def _name_preset(self):
        """Let the dropdown say which preset the state is, or that it is none."""
        values = self.values
        fitting = [label for label, preset in self._presets.items() if preset.items() <= values.items()]
        label = self.preset.value if self.preset.value in fitting else (fitting or [YOUR_OWN])[0]
        self._hold, self.preset.value, self._hold = True, label, False

    def _show_note(self, text, trouble=False):
        look = "padding: 2px 8px; line-height: 1.4; white-space: pre-wrap"
        if trouble:
            look += f"; border-left: 4px solid {style.colour('gradients')}"
        self.note.value = f'<div role="status" style="{look}">{html.escape(text)}</div>' if text else ""

    def static_png(self) -> bytes:
        """The present picture with the sentence above it: what readers without a kernel see."""
        with self._drawing_lock:
            return style.png_with_text(self._figure, self.text)

    def _repr_mimebundle_(self, **kwargs):
        picture = base64.b64encode(self.static_png()).decode()
        return with_live_view(self, {"image/png": picture, "text/plain": self.text})


def with_live_view(widget, static: dict) -> dict:
    """One output in several forms: `widget` where there is a kernel, else the best of `static` ({MIME type: data})."""
    return {LIVE_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}, **static}


def without_live_views(notebook) -> None:
    """Take the live views and their state out of an executed notebook (nbformat), which is how it is stored.

    Only outputs that also have a static form lose their live one.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if set(output.get("data", ())) - {LIVE_VIEW, "text/plain"}:
                output["data"].pop(LIVE_VIEW, None)
