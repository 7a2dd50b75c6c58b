"""Colours, dashes and markers of the charts, and what is readable on what."""

from __future__ import annotations

RGB = tuple[int, int, int]

# Okabe and Ito's colours, which stay apart for every kind of colour vision; black and yellow are
# left out because each vanishes on one of the two backgrounds. The second row is lighter, for dark.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#c98500", "#2a9bd6", "#66615c")
DARK = ("#5aaeea", "#f5894a", "#2fc79b", "#e6a3cb", "#f0b93f", "#9ad8fa", "#bdb7b0")
DASHES = (None, "7 4", "2 3.5", "10 3 2 3", "4 2.5")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
LEVELS = 32
"""Steps of shade in a heat map."""
RAMPS = {
    "light": ((239, 244, 248), (88, 155, 203), (8, 58, 112)),
    "dark": ((28, 37, 47), (33, 98, 150), (150, 208, 247)),
}
"""Shade of the least, the middle and the greatest value."""


def shade(share: float, theme: str) -> RGB:
    """Colour of a share between 0 and 1 on a theme's ramp."""
    low, middle, high = RAMPS[theme]
    share = min(max(share, 0.0), 1.0)
    near, far, at = (low, middle, 2 * share) if share < 0.5 else (middle, high, 2 * share - 1)
    red, green, blue = (round(a + (b - a) * at) for a, b in zip(near, far, strict=True))
    return red, green, blue


def contrast(one: RGB, other: RGB) -> float:
    """WCAG contrast ratio of two colours, 1 to 21."""

    def luminance(colour: RGB) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (channel / 255 for channel in colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink(background: RGB) -> RGB:
    """Black or white, whichever reads better on a background."""
    return max(((0, 0, 0), (255, 255, 255)), key=lambda colour: contrast(colour, background))


def css(theme: str) -> str:
    """Rules of one theme: `--c` of each series and the shades of the heat maps."""
    series = LIGHT if theme == "light" else DARK
    rules = [f".c{i}{{--c:{colour}}}" for i, colour in enumerate(series)]
    for level in range(LEVELS):
        background = shade(level / (LEVELS - 1), theme)
        rules.append(f".h{level}{{background:{_hex(background)};color:{_hex(ink(background))}}}")
    return "".join(rules)


def _hex(colour: RGB) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)
