"""The two pictures of docs/detection.md, from the packaged policy and exact probabilities: `python bench/detection/plots.py [FOLDER]`."""

from __future__ import annotations

import math
import os
import sys
from typing import Final, NamedTuple, Sequence

from slurm_nvhc.judge import chance
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Cusum, Poisson, resolve

NAMES: Final = ("detection-threshold.svg", "detection-power.svg")
DOCS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
RULE: Final = "nvl_recovery"
HOUR: Final = 3600.0
RATES: Final = ((8.6, "8.6 an hour", "#1f6fb2"), (0.5, "0.5 an hour", "#b2541f"))  # of a link on its way out, and of a slow one

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 46, 60
_FONT: Final = 'font-family="sans-serif" font-size="13"'


class Axis(NamedTuple):
    """low, high: in the figure's unit; ticks: (value, text)."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Line(NamedTuple):
    """inline: the text stands on the line's beginning, not in the legend."""

    text: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    inline: bool = False


def settings() -> tuple[float, Poisson, Cusum]:
    """(level of one test, what is normal, rates of the gathered evidence) of the packaged rule about recoveries."""
    policy = resolve(compile_policy(None, "plots"))
    rule = policy.rules[RULE]
    levels = (*rule.warn, *rule.fail)
    poisson = next(level.poisson for level in levels if level.poisson is not None)
    cusum = next(level.cusum for level in levels if level.cusum is not None)
    return policy.false_alarms.alpha, poisson, cusum


def threshold() -> str:
    """From which count on a window is beyond chance, against the count that is normal for it; flat rules beside it."""
    alpha, _, _ = settings()
    means = [10 ** (-3 + n / 20) for n in range(121)]
    x = Axis("errors that are normal in the window", 1e-3, 1e3, [(10.0**n, f"{10.0**n:g}") for n in range(-3, 4)], log=True)
    y = Axis("errors counted", 0.8, 2e3, [(1, "1"), (3, "3"), (10, "10"), (100, "100"), (1000, "1000")], log=True)
    lines = [
        Line("beyond chance: the judge's threshold", "#1f6fb2", [(m, chance.critical(m, alpha)) for m in means]),
        Line("what is normal", "#777777", [(m, m) for m in means if m >= 0.8], dashed=True),
        *(Line(text, "#b2541f", [(1e-3, n), (1e3, n)], inline=True) for n, text in ((1, "> 0"), (5, ">= 5"), (100, ">= 100"))),
    ]
    title = f"One false alarm in {1 / alpha:.0e} windows, whatever is normal".replace("e+0", "e")
    return draw(title, x, y, lines, (LEFT + 90, TOP + 24))


def power() -> str:
    """How likely a bad link is found, against the time it was in use: in one job of that length, and with evidence carried over jobs."""
    alpha, normal, cusum = settings()
    hours = [10 ** (-1 + n / 40) for n in range(121)]
    x = Axis("hours in use", 0.1, 100, [(h, f"{h:g}") for h in (0.1, 0.35, 1, 4, 12, 24, 100)], log=True)
    y = Axis("probability of being found", 0, 1, [(n / 5, f"{n * 20} %") for n in range(6)])
    lines = []
    for rate, text, colour in RATES:
        once = [(h, in_one_job(rate, h, normal, alpha)) for h in hours]
        over_jobs = [(h, carried(rate, h, cusum, alpha)) for h in hours]
        lines.append(Line(f"{text}, in one job", colour, once))
        lines.append(Line(f"{text}, over jobs", colour, _rising(over_jobs), dashed=True))
    lines.append(Line("healthy: 0.001 an hour", "#777777", [(h, in_one_job(0.001, h, normal, alpha)) for h in hours]))
    return draw("How likely a link is found that makes errors all the time", x, y, lines, (WIDTH - RIGHT - 220, 240))


def in_one_job(per_h: float, hours: float, normal: Poisson, alpha: float) -> float:
    """P(a job of this length counts more than chance gives)"""
    return chance.tail(chance.critical(normal.per_s * HOUR * hours, alpha), per_h * hours)


def carried(per_h: float, hours: float, cusum: Cusum, alpha: float) -> float:
    """At least so likely is an alarm of the gathered evidence by then: the sum is never below errors less allowance."""
    rates = cusum.normal_per_s * HOUR, cusum.faulty_per_s * HOUR
    limit = chance.cusum_limit(*rates, alpha)
    return chance.tail(math.ceil(limit + chance.allowance(*rates) * hours), per_h * hours)


def _rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """An alarm by one moment is one by every later moment."""
    out, most = [], 0.0
    for x, y in points:
        most = max(most, y)
        out.append((x, most))
    return out


def draw(title: str, x: Axis, y: Axis, lines: Sequence[Line], legend: tuple[float, float]) -> str:
    """An SVG with its own white ground, so that it can be read on a dark page. legend: where its first line stands."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="26" {_FONT} font-weight="bold">{_text(title)}</text>',
    ]
    for value, text in x.ticks:
        at = _x(x, value)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" {_FONT} text-anchor="middle">{text}</text>')
    for value, text in y.ticks:
        at = _y(y, value)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" {_FONT} text-anchor="end">{text}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 16}" {_FONT} text-anchor="middle">{_text(x.label)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 18 {middle:.0f})"'
    out.append(f'<text x="18" y="{middle:.0f}" {_FONT} {turned}>{_text(y.label)}</text>')
    left, top = legend
    for line in lines:
        path = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in line.points)
        stroke = f'fill="none" stroke="{line.colour}" stroke-width="2"' + (' stroke-dasharray="6 4"' if line.dashed else "")
        out.append(f'<polyline points="{path}" {stroke}/>')
        beside, under = (LEFT + 6, _y(y, line.points[0][1]) - 6) if line.inline else (left + 36, top)
        out.append(f'<text x="{beside:.1f}" y="{under:.1f}" {_FONT} fill="{line.colour}">{_text(line.text)}</text>')
        if not line.inline:
            out.append(f'<polyline points="{left:.1f},{top - 4:.1f} {left + 28:.1f},{top - 4:.1f}" {stroke}/>')
            top += 22
    return "\n".join([*out, "</svg>", ""])


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _text(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def write(folder: str = DOCS) -> None:
    for name, picture in zip(NAMES, (threshold(), power())):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            out.write(picture)


if __name__ == "__main__":
    write(*sys.argv[1:2])
