"""One colour for one thing, everywhere in the course (Okabe and Ito's set, safe for colour-blind readers)."""

COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight gradient": "#009E73",
    "communication": "#CC79A7",
    "parameters": "#56B4E9",
    "gradients": "#D55E00",
    "optimizer state": "#F0E442",
    "activations": "#999999",
    "idle": "#FFFFFF",
}
