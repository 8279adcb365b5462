"""Whatever the public functions, classes and methods are given, what comes back is a sentence of the library's own."""

import inspect
import math
from dataclasses import is_dataclass

import pytest
from public_calls import Made
from public_face import Public, public, stand_in

import uds_lens as ul
from uds_lens._arguments import Named, kinds_of, shown
from uds_lens.errors import ConfigError, UdsLensError

MISUSE = (None, 3, "x", object(), 10**400, math.nan, math.inf, "False")

EVERYTHING = list(public())


def is_record(each: Public) -> bool:
    """Named tuples and dataclasses without checks of their own: the library fills them, users read them."""
    cls = each.call
    return inspect.isclass(cls) and (is_dataclass(cls) or issubclass(cls, tuple | Exception))


@pytest.fixture(scope="module")
def made(opened, tmp_path_factory) -> Made:
    return Made(opened("llama"), tmp_path_factory.mktemp("calls"))


CHECKED = [each for each in EVERYTHING if kinds_of(each.call) is not None]


NOT_FOR_USERS = {
    "metrics.Evidence": "an interface: what the function of a metric is handed",
    "metrics.FluencyScorer": "an interface",
    "models.HookedModel": "made by open_model",
    "unlearning.FrozenModel": "made by the training loop",
    "unlearning.Passes": "made by the training loop",
}
"""Classes that users read, and nobody but the library makes."""


def takes_names(call) -> bool:
    kinds = {parameter.kind for parameter in inspect.signature(call).parameters.values()}
    return bool(kinds - {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def test_every_public_function_is_checked() -> None:
    bare = {
        each.name
        for each in EVERYTHING
        if kinds_of(each.call) is None
        and not is_record(each)
        and takes_names(each.call)
        and ".".join(each.name.split(".")[:2]) not in NOT_FOR_USERS
    }
    assert {
        name for name in bare if not name.endswith((".require_positive", ".require_not_negative"))
    } == set()


CLASSES_BY_NAME = {"AuditScores", "DataFrame", "Figure", "MetricOptions", "Series"}
"""Classes that annotations name and modules import for type checkers only."""


def test_what_is_known_by_its_name_is_a_class() -> None:
    """The name of an alias would refuse whatever comes: it belongs into `_CHECKED_WHERE_READ`."""
    kinds = [kind for each in CHECKED for kind in kinds_of(each.call).values()]
    named = {cls.__name__ for kind in kinds for cls in kind.classes if isinstance(cls, Named)}
    assert named == CLASSES_BY_NAME


@pytest.mark.parametrize("each", CHECKED, ids=lambda each: each.name)
def test_arguments_of_another_kind_are_refused_by_name(each: Public, unchecked) -> None:
    kinds, parameters = kinds_of(each.call), inspect.signature(each.call).parameters
    owner = [object()] if next(iter(parameters), "") in ("self", "cls") else []
    needed = {
        name: stand_in(kinds[name])
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in ("self", "cls", "_cls")
    }
    for name in parameters:
        for value in MISUSE:
            if name in kinds and not kinds[name].holds(value):
                with pytest.raises(ConfigError, match=rf"^{name} must be ") as refused:
                    each.call(*owner, **{**needed, name: value})
                assert len(str(refused.value)) < 500
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        with pytest.raises(ConfigError, match=r"has no (argument|setting) 'colour'"):
            each.call(*owner, **needed, colour=1)
    if needed:
        with pytest.raises(ConfigError, match=f"needs .*'{next(iter(needed))}'"):
            each.call(*owner)


SETTINGS = [
    each
    for each in EVERYTHING
    if is_dataclass(each.call)
    and hasattr(each.call, "__post_init__")
    and all(p.default is not p.empty for p in inspect.signature(each.call).parameters.values())
]


@pytest.mark.parametrize("each", SETTINGS, ids=lambda each: each.name)
def test_settings_refuse_in_words(each: Public, unchecked) -> None:
    """Each field of each record of settings, with everything else at its default."""
    for name in inspect.signature(each.call).parameters:
        for value in MISUSE:
            try:
                each.call(**{name: value})
            except UdsLensError as error:
                assert len(str(error)) < 500
    with pytest.raises(UdsLensError, match="'colour'"):
        each.call(colour=1)


def test_what_fits_an_annotation_and_makes_no_sense(made: Made, unchecked) -> None:
    """With everything else as it should be: numbers out of range, names of nothing, None where something is needed."""
    raw, called = [], set()
    for each in EVERYTHING:
        if each.name not in made.calls:
            continue
        settings = made.calls[each.name]()
        called.add(each.name)
        kinds = kinds_of(each.call) or {}
        try:
            each.call(**settings)
        except Exception as error:
            raw.append(f"{each.name}, as it is meant: {type(error).__name__}: {str(error)[:120]}")
            continue
        for name, parameter in inspect.signature(each.call).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            for value in MISUSE:
                if name in kinds and not kinds[name].holds(value):
                    continue  # refused before anything is done, as the test above says
                try:
                    each.call(**{**settings, name: value})
                except UdsLensError as error:
                    if len(str(error)) >= 500:
                        raw.append(f"{each.name}({name}={value!r}): {len(str(error))} letters")
                except Exception as error:
                    raw.append(
                        f"{each.name}({name}={shown(value)}): {type(error).__name__}: {str(error)[:80]}"
                    )
    assert called == set(made.calls), "a call of something that is not public"
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ul.DepthAudit.load(3), "path must be a text or a path; got 3"),
        (lambda: ul.unlearning.quantise(None, out="x"), "model must be a text or a path; got None"),
        (
            lambda: ul.report.write(None, "x"),
            "audits must be DepthAudit, a dict or a list of DepthAudit; got None",
        ),
        (lambda: ul.meta.rank(3), "frame must be DataFrame; got 3"),
        (lambda: ul.metrics.open_metric_data(3), "source must be a text; got 3"),
        (
            lambda: ul.metrics.MetricData(forgot=[]),
            "MetricData has no argument 'forgot'; did you mean 'forget'",
        ),
        (lambda: ul.elicitation.GCG(stepz=3), "GCG has no argument 'stepz'; did you mean 'steps'"),
        (
            lambda: ul.elicitation.GCG(steps=10**400),
            "steps must be a whole number of at most 9223372036854775807",
        ),
    ],
)
def test_sentences(call, words, unchecked) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert words in str(refused.value)
