"""Every method by name, and the numbers of the explicit ones."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bfno.ode.implicit_tableaus import IMPLICIT_METHODS
from bfno.ode.runge_kutta import Row, Tableau, hermite_output, linear_output

__all__ = ["METHODS", "AutoTableau", "Row", "Tableau", "find_explicit", "find_method"]


def _quartic(weights: Sequence[float], middle: Sequence[float]) -> tuple[Row, ...]:
    """The quartic through both ends and the middle with the slopes of first and last stage."""
    rows = np.outer(weights, [0.0, -5.0, 14.0, -8.0]) + np.outer(middle, [0.0, 16.0, -32.0, 16.0])
    rows[0] += [1.0, -4.0, 5.0, -2.0]
    rows[-1] += [0.0, 1.0, -3.0, 2.0]
    return tuple(map(tuple, rows.tolist()))


def _fixed(name: str, order: int, stages: tuple[Row, ...], weights: Row) -> Tableau:
    return Tableau(name, order, stages, weights, None, linear_output(weights), 1)


def _difference(weights: Row, other: Row) -> Row:
    return tuple(a - b for a, b in zip(weights, other, strict=True))


_EULER = _fixed("euler", 1, ((),), (1.0,))
_MIDPOINT = _fixed("midpoint", 2, ((), (1 / 2,)), (0.0, 1.0))
_HEUN2 = _fixed("heun2", 2, ((), (1.0,)), (1 / 2, 1 / 2))
_HEUN3 = _fixed("heun3", 3, ((), (1 / 3,), (0.0, 2 / 3)), (1 / 4, 0.0, 3 / 4))
# Kutta's 3/8 rule, which has this name in other PyTorch libraries.
_RK4 = _fixed(
    "rk4",
    4,
    ((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    (1 / 8, 3 / 8, 3 / 8, 1 / 8),
)

_ADAPTIVE_HEUN = replace(_HEUN2, name="adaptive_heun", error=(1 / 2, -1 / 2)).with_end_stage()
_FEHLBERG2_WEIGHTS = (1 / 512, 255 / 256, 1 / 512)
_FEHLBERG2 = Tableau(
    "fehlberg2",
    2,
    ((), (1 / 2,), (1 / 256, 255 / 256)),
    _FEHLBERG2_WEIGHTS,
    (-1 / 512, 0.0, 1 / 512),
    linear_output(_FEHLBERG2_WEIGHTS),
    1,
).with_end_stage()

_BOSH3_WEIGHTS = (2 / 9, 1 / 3, 4 / 9, 0.0)
_BOSH3 = Tableau(
    "bosh3",
    3,
    ((), (1 / 2,), (0.0, 3 / 4), _BOSH3_WEIGHTS[:-1]),
    _BOSH3_WEIGHTS,
    _difference(_BOSH3_WEIGHTS, (7 / 24, 1 / 4, 1 / 3, 1 / 8)),
    hermite_output(_BOSH3_WEIGHTS),
    3,
)

# Dormand and Prince 1980; dense output of Shampine 1986.
_DOPRI5_WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0)
_DOPRI5_MIDDLE = (
    6025192743 / 60171106304, 0.0, 51252292925 / 130801643196, -2691868925 / 90256659456,
    187940372067 / 3189068634112, -1776094331 / 39487288512, 11237099 / 470086768,
)  # fmt: skip
_DOPRI5 = Tableau(
    "dopri5",
    5,
    (
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        _DOPRI5_WEIGHTS[:-1],
    ),
    _DOPRI5_WEIGHTS,
    _difference(
        _DOPRI5_WEIGHTS,
        (1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60),
    ),
    _quartic(_DOPRI5_WEIGHTS, _DOPRI5_MIDDLE),
    4,
)

# Tsitouras 2011.
_TSIT5_WEIGHTS = (
    0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081,
    2.324710524099774, 0.0,
)  # fmt: skip


def _product(scale: float, *factors: Sequence[float]) -> Row:
    """Coefficients of θ, θ², … of a product of polynomials given lowest power first."""
    result = np.array([scale])
    for factor in factors:
        result = np.convolve(result, factor)
    return tuple(result[1:].tolist())


_TSIT5_STAGES = (
    (),
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (
        5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401,
        -0.028269050394068383,
    ),
    _TSIT5_WEIGHTS[:-1],
)  # fmt: skip
_TSIT5_ERROR = (
    -0.00178001105222577714, -0.0008164344596567469, 0.007880878010261995, -0.1447110071732629,
    0.5823571654525552, -0.45808210592918697, 1 / 66,
)  # fmt: skip
_TSIT5 = Tableau(
    "tsit5",
    5,
    _TSIT5_STAGES,
    _TSIT5_WEIGHTS,
    _TSIT5_ERROR,
    (
        _product(
            -1.0530884977290216,
            (0, 1),
            (-1.3299890189751412, 1),
            (0.7139816917074209, -1.4364028541716351, 1),
        ),
        _product(0.1017, (0, 0, 1), (1.2949852507374631, -2.1966568338249754, 1)),
        _product(2.490627285651252793, (0, 0, 1), (1.57803468208092486, -2.38535645472061657, 1)),
        _product(
            -16.54810288924490272, (0, 0, 1), (-1.21712927295533244, 1), (-0.61620406037800089, 1)
        ),
        _product(
            47.37952196281928122, (0, 0, 1), (-1.203071208372362603, 1), (-0.658047292653547382, 1)
        ),
        _product(-34.87065786149660974, (0, 0, 1), (-1.2, 1), (-2 / 3, 1)),
        _product(2.5, (0, 0, 1), (-1.0, 1), (-0.6, 1)),
    ),
    4,
)

# Prince and Dormand 1981, RK8(7)13M.
_DOPRI8_WEIGHTS = (
    14005451 / 335480064, 0.0, 0.0, 0.0, 0.0, -59238493 / 1068277825, 181606767 / 758867731,
    561292985 / 797845732, -1041891430 / 1371343529, 760417239 / 1151165299,
    118820643 / 751138087, -528747749 / 2220607170, 1 / 4, 0.0,
)  # fmt: skip
_DOPRI8_LOWER = (
    13451932 / 455176623, 0.0, 0.0, 0.0, 0.0, -808719846 / 976000145, 1757004468 / 5645159321,
    656045339 / 265891186, -3867574721 / 1518517206, 465885868 / 322736535,
    53011238 / 667516719, 2 / 45, 0.0, 0.0,
)  # fmt: skip
_DOPRI8_STAGES = (
    (),
    (1 / 18,),
    (1 / 48, 1 / 16),
    (1 / 32, 0.0, 3 / 32),
    (5 / 16, 0.0, -75 / 64, 75 / 64),
    (3 / 80, 0.0, 0.0, 3 / 16, 3 / 20),
    (
        29443841 / 614563906, 0.0, 0.0, 77736538 / 692538347, -28693883 / 1125000000,
        23124283 / 1800000000,
    ),
    (
        16016141 / 946692911, 0.0, 0.0, 61564180 / 158732637, 22789713 / 633445777,
        545815736 / 2771057229, -180193667 / 1043307555,
    ),
    (
        39632708 / 573591083, 0.0, 0.0, -433636366 / 683701615, -421739975 / 2616292301,
        100302831 / 723423059, 790204164 / 839813087, 800635310 / 3783071287,
    ),
    (
        246121993 / 1340847787, 0.0, 0.0, -37695042795 / 15268766246, -309121744 / 1061227803,
        -12992083 / 490766935, 6005943493 / 2108947869, 393006217 / 1396673457,
        123872331 / 1001029789,
    ),
    (
        -1028468189 / 846180014, 0.0, 0.0, 8478235783 / 508512852, 1311729495 / 1432422823,
        -10304129995 / 1701304382, -48777925059 / 3047939560, 15336726248 / 1032824649,
        -45442868181 / 3398467696, 3065993473 / 597172653,
    ),
    (
        185892177 / 718116043, 0.0, 0.0, -3185094517 / 667107341, -477755414 / 1098053517,
        -703635378 / 230739211, 5731566787 / 1027545527, 5232866602 / 850066563,
        -4093664535 / 808688257, 3962137247 / 1805957418, 65686358 / 487910083,
    ),
    (
        403863854 / 491063109, 0.0, 0.0, -5068492393 / 434740067, -411421997 / 543043805,
        652783627 / 914296604, 11173962825 / 925320556, -13158990841 / 6184727034,
        3936647629 / 1978049680, -160528059 / 685178525, 248638103 / 1413531060, 0.0,
    ),
    _DOPRI8_WEIGHTS[:-1],
)  # fmt: skip
# Dense output: coefficients of θ … θ⁶ of the stages that take part.
_DOPRI8_DENSE = {
    0: (1.0, -6.6910181737837595697, 19.999006933368397061, -30.0610568289666450593,
        22.1396504998094068976, -6.3448349392860401388),
    5: (0.0, -7.6142658045872677172, 52.227353279294552405, -121.4999627731334642623,
        116.4422149550342161651, -39.6107919852202505218),
    6: (0.0, 10.7281392630428866124, -46.8919164181093621583, 83.1721004639847717481,
        -67.1451318825957197185, 20.3761213808791436958),
    7: (0.0, 0.5526637063753648783, -0.1890893225010595467, 9.5724507555993664382,
        -16.5672243527496524646, 7.3347098826795362023),
    8: (0.0, 4.2186562625665153803, -35.7075975946222072821, 87.8406057677205645007,
        -89.9916014847245016028, 32.8801774352459155182),
    9: (0.0, -0.6627209125361597559, 6.273644808324035216, -17.4152107770762969005,
        22.6237489648532849093, -10.1588990526426760954),
    10: (0.0, -1.2636789001135462218, 10.3160881272450748458, -28.5903289514790976966,
         32.2362340167355370113, -12.54012680987825612),
    11: (0.0, 5.410603789859042223, -34.7650769866611817349, 81.6630950584341412934,
         -82.1020315488359848644, 29.5553001484516038033),
    12: (0.0, -7.0321379067945741781, 47.7457971078225540396, -114.937529137700941817,
         116.2662185791119533462, -41.7923486424390588923),
    13: (0.0, 2.3537586759714983486, -19.0082099341608028453, 50.2558364226176017553,
         -53.9020777466385396792, 20.3006925822100825485),
}  # fmt: skip
_DOPRI8 = Tableau(
    "dopri8",
    8,
    _DOPRI8_STAGES,
    _DOPRI8_WEIGHTS,
    _difference(_DOPRI8_WEIGHTS, _DOPRI8_LOWER),
    tuple(_DOPRI8_DENSE.get(stage, (0.0,) * 6) for stage in range(len(_DOPRI8_STAGES))),
    5,
)

_FIXED_METHODS = (_EULER, _MIDPOINT, _HEUN2, _HEUN3, _RK4)
_ADAPTIVE_METHODS = (_ADAPTIVE_HEUN, _FEHLBERG2, _BOSH3, _DOPRI5, _TSIT5, _DOPRI8)


@dataclass(frozen=True, repr=False)
class AutoTableau(Tableau):
    """An explicit method, with its numbers, and an implicit one for stiff parts of the interval.

    Attributes:
        explicit: The explicit method.
        stiff: The implicit one, of the same order.
    """

    explicit: Tableau
    stiff: Tableau

    @classmethod
    def of(cls, name: str, explicit: Tableau, stiff: Tableau) -> AutoTableau:
        """Combine two methods; dense output is as coarse as that of the coarser one."""
        return cls(
            name, explicit.order, explicit.stages, explicit.weights, explicit.error, explicit.dense,
            min(explicit.dense_order, stiff.dense_order), explicit, stiff,
        )  # fmt: skip

    @property
    def implicit(self) -> bool:
        return True  # now and then


_KVAERNO5 = next(tableau for tableau in IMPLICIT_METHODS if tableau.name == "kvaerno5")
METHODS: dict[str, Tableau] = {
    **{tableau.name: tableau for tableau in _FIXED_METHODS + _ADAPTIVE_METHODS},
    "heun": _HEUN2,
    **{tableau.name: tableau for tableau in IMPLICIT_METHODS},
    "auto": AutoTableau.of("auto", _TSIT5, _KVAERNO5),
}
"""Every method by name; `heun` is short for `heun2`."""


def find_method(name: str | Tableau) -> Tableau:
    """The method of that name; a tableau is returned as it is."""
    if isinstance(name, Tableau):
        return name
    if not isinstance(name, str) or name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else "try dopri5, bosh3 or kvaerno5"
        raise ValueError(
            f"method must be a name in bfno.METHODS or a tableau, got {name!r}; {hint}"
        )
    return METHODS[name]


def find_explicit(name: str | Tableau, user: str) -> Tableau:
    """The explicit method of that name, for callers that cannot solve equations."""
    tableau = find_method(name)
    if tableau.implicit:
        raise ValueError(f"{user} needs an explicit method such as midpoint, got {tableau.name!r}")
    return tableau
