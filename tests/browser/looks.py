"""What a reader can see and read on the page, measured in the page."""
from playwright.sync_api import Locator

READABLE = 4.5
"""Contrast of text with its background, as WCAG 2 asks (level AA)."""

_CUT_OFF = """(box) => {
    const found = [], name = element => `${element.className} "${element.textContent.slice(0, 40)}"`;
    const edge = box.getBoundingClientRect().right + 1;
    const shown = [...box.querySelectorAll("*")].filter(element => element.checkVisibility());
    for (const element of shown) {
        if (element.getBoundingClientRect().right > edge) found.push(`${name(element)} reaches out of the output`);
        const holds_text = element.matches("label, button, .widget-readout, .widget-html-content");
        if (holds_text && element.scrollWidth > element.clientWidth + 1)
            found.push(`${name(element)} is ${element.scrollWidth} px wide, and there are ${element.clientWidth}`);
    }
    const brush = document.createElement("canvas").getContext("2d");
    for (const select of shown.filter(element => element.matches("select"))) {
        const style = getComputedStyle(select), room = select.clientWidth - parseFloat(style.paddingLeft) - ARROW;
        brush.font = `${style.fontSize} ${style.fontFamily}`;
        for (const option of select.options) {
            const width = Math.ceil(brush.measureText(option.text).width);
            if (width > room) found.push(`"${option.text}" is ${width} px wide, and its dropdown has ${Math.floor(room)}`);
        }
    }
    if (box.scrollWidth > box.clientWidth + 1) found.push("the output scrolls sideways");
    return found;
}""".replace("ARROW", "20")


def cut_off(box: Locator) -> list[str]:
    """Which labels, buttons and dropdown entries of an output do not fit, and what makes it scroll sideways."""
    return box.evaluate(_CUT_OFF)


_SIDEWAYS = """boxes => boxes.filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
    .map(box => `${box.scrollWidth} px in ${box.clientWidth}: ${box.textContent.slice(0, 60)}`)"""


def sideways(boxes: Locator) -> list[str]:
    """Which outputs are wider than their place and must be scrolled sideways."""
    return boxes.evaluate_all(_SIDEWAYS)


_HARD_TO_READ = """(boxes, least) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const colour = text => {  // any CSS colour as red, green, blue and opacity
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
    };
    const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
    const background = element => {
        if (!element) return [255, 255, 255];
        const own = colour(getComputedStyle(element).backgroundColor);
        return own[3] == 1 ? own.slice(0, 3) : over(own, background(element.parentElement));
    };
    const light = rgb => rgb.map(level => level / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    for (const element of boxes.flatMap(box => [box, ...box.querySelectorAll("*")])) {
        const text = element.matches("input") ? element.value
            : element.matches("select") ? element.selectedOptions[0]?.text
            : [...element.childNodes].filter(node => node.nodeType == 3).map(node => node.data).join("").trim();
        if (!text || !element.checkVisibility() || element.disabled || element.matches(NOT_OURS)) continue;
        const below = background(element);
        const [high, low] = [light(over(colour(getComputedStyle(element).color), below)), light(below)].sort((a, b) => b - a);
        const contrast = (high + 0.05) / (low + 0.05);
        if (contrast < least)
            found.push(`${contrast.toFixed(1)}: ${element.tagName} ${element.className} "${text.slice(0, 40)}"`);
    }
    return found;
}""".replace("NOT_OURS", "'option, script, style, [class*=ansi-]'")  # JupyterLab chooses the colours of a traceback


def hard_to_read(boxes: Locator) -> list[str]:
    """Texts whose contrast with their background is below READABLE; disabled controls are not asked."""
    return boxes.evaluate_all(_HARD_TO_READ, READABLE)


_SEE_THROUGH = """(box) => [...box.querySelectorAll("img")].filter(image => image.naturalWidth).filter(image => {
    const canvas = document.createElement("canvas"); canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
    const brush = canvas.getContext("2d"); brush.drawImage(image, 0, 0);
    return brush.getImageData(0, 0, canvas.width, canvas.height).data.some((level, i) => i % 4 == 3 && level < 255);
}).map(image => `${image.naturalWidth} x ${image.naturalHeight}`)"""


def see_through(box: Locator) -> list[str]:
    """Sizes of the pictures through which the page's own background can be seen."""
    return box.evaluate(_SEE_THROUGH)
