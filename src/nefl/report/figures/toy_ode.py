"""The paper's toy: what an ODE solver makes of fewer steps, and how better ones mend it."""

import numpy as np
import numpy.typing as npt

from nefl.report.figures.vega import Figure, Spec

END = 30.0
COARSE_STEPS = 10
Points = npt.NDArray[np.float64]


def truth(t: Points) -> Points:
    """The paper's ground truth, 0.1t + sin 0.2t + cos 0.3t."""
    return 0.1 * t + np.sin(0.2 * t) + np.cos(0.3 * t)


def slope(t: Points) -> Points:
    """Its derivative."""
    return 0.1 + 0.2 * np.cos(0.2 * t) - 0.3 * np.sin(0.3 * t)


def euler(times: Points) -> Points:
    """Solve by Euler's method from one time to the next."""
    steps = np.diff(times) * slope(times[:-1])
    return np.concatenate([truth(times[:1]), truth(times[:1]) + np.cumsum(steps)])


def improved_euler(times: Points) -> Points:
    """Solve by the improved Euler method, which takes the mean of the slopes at both ends."""
    steps = np.diff(times) * (slope(times[:-1]) + slope(times[1:])) / 2
    return np.concatenate([truth(times[:1]), truth(times[:1]) + np.cumsum(steps)])


def optimised_times(steps: int = COARSE_STEPS) -> Points:
    """Return the times of so many Euler steps whose sizes leave the least squared error."""
    from scipy.optimize import minimize  # late: no other command needs to wait for it

    fine = np.linspace(0, END, 301)

    def times(free: Points) -> Points:
        shares = np.exp(free - free.max())  # sizes stay positive and add up to the whole
        return np.concatenate([[0.0], np.cumsum(END * shares / shares.sum())])

    def error(free: Points) -> float:
        found = times(free)
        return float(np.mean((np.interp(fine, found, euler(found)) - truth(fine)) ** 2))

    best = minimize(error, np.zeros(steps), method="BFGS")
    return times(best.x)


def toy_ode() -> Figure:
    """The paper's toy: fewer steps are worse, unless their sizes or slopes are better."""
    fine = np.linspace(0, END, 151)
    even_2, even_3 = np.arange(0, END + 1, 2.0), np.arange(0, END + 1, 3.0)
    chosen = optimised_times()
    ways = {
        "ground truth": (fine, truth(fine)),
        "Euler, h = 2 (15 steps)": (even_2, euler(even_2)),
        "Euler, h = 3 (10 steps)": (even_3, euler(even_3)),
        "Euler, 10 optimised steps": (chosen, euler(chosen)),
        "improved Euler, h = 3": (even_3, improved_euler(even_3)),
    }
    names = list(ways)
    records = [
        {"solver": name, "t": round(float(t), 4), "y": round(float(y), 5)}
        for name, (times, values) in ways.items()
        for t, y in zip(times, values, strict=True)
    ]
    solver: Spec = {"field": "solver", "type": "nominal"}
    spec: Spec = {
        "width": "container",
        "height": 280,
        "mark": {"type": "line", "tooltip": True},
        "encoding": {
            "x": {"field": "t", "type": "quantitative"},
            "y": {"field": "y", "type": "quantitative", "scale": {"zero": False}},
            "color": solver
            | {
                "sort": names,
                "scale": {
                    "domain": names,
                    "range": ["#1b1f24", "#0072b2", "#2a8a2a", "#d55e00", "#2fa8d8"],
                },
                "legend": {"title": None, "orient": "bottom", "columns": 2},
            },
            "strokeDash": solver
            | {
                "scale": {"domain": names, "range": [[1, 0], [1, 0], [1, 0], [6, 3], [6, 3]]},
                "legend": None,
            },
        },
    }
    about = (
        "How the number of steps and their sizes change what a solver makes of "
        "0.1t + sin 0.2t + cos 0.3t."
    )
    return Figure("toy-ode", "Toy example of an ODE solver", about, spec, records)
