"""Machine code for whole solves: graphs, translated to C++ by torch's compiler, around one loop.

Steps are traced from the graph of a field, with their gradients; torch's compiler makes C++ of
them, which is compiled together with `loop.cpp` into one library. Libraries are kept on disk beside
the compiler's own.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from bfno.ode.captured import CannotCompile, CapturedField
from bfno.ode.step import Sums, take_stages
from bfno.ode.tableaus import Tableau

__all__ = ["Recipe", "load_library"]

_INCLUDE = re.compile(r"^\s*(#include .*)$", flags=re.MULTILINE)
_LOOP = Path(__file__).with_name("loop.cpp")
_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


@dataclass(frozen=True)
class Recipe:
    """The ingredients of a library.

    Attributes:
        field: The graph of the field.
        tableau: The method.
        adaptive: Whether steps are measured, and have dense output.
        y: A state, contiguous.
        tensors: The tensors that the field uses.
        summed: Places of those that get gradients.
        differentiable: Whether gradients are wanted at all.
    """

    field: CapturedField
    tableau: Tableau
    adaptive: bool
    y: Tensor
    tensors: Sequence[Tensor]
    summed: tuple[int, ...]
    differentiable: bool

    @property
    def slope_count(self) -> int:
        """Number of last slopes that a step returns."""
        if self.adaptive:
            return len(self.tableau.stages) - 1
        return int(self.tableau.reuses_last_stage)

    def slope(self, y: Tensor, numbers: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The field at a time."""
        return (self.field.slope(numbers[0].to(y.dtype), y, tensors).clone(),)

    def step(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """A step: the state at its end, its squared error in tolerances, its last slopes."""
        tableau, given = self.tableau, inputs[: 1 + self.tableau.reuses_last_stage]
        y, numbers, tensors = inputs[0], inputs[len(given)], inputs[len(given) + 1 :]
        start, size, rtol, atol = numbers.unbind(0)
        times = [(start + node * size).to(y.dtype) for node in tableau.nodes]
        sums = Sums(tableau)
        sums.begin(y, size.to(y.dtype))
        for slope in given[1:]:
            sums.add(slope)
        end = take_stages(lambda t, y: self.field.slope(t, y, tensors), times, sums)
        results = [end]
        if self.adaptive:
            scale = torch.maximum(y.abs(), end.abs()) * rtol.to(y.dtype) + atol.to(y.dtype)
            # If a number is zero, its tolerance may be zero too; a zero error there stays zero.
            scale = scale.clamp(min=torch.finfo(y.dtype).tiny)
            weighted = zip(tableau.error or (), sums.slopes, strict=True)
            error = sum(slope.detach() * weight for weight, slope in weighted if weight)
            results.append((error * size.to(y.dtype) / scale).detach().square().sum())
        return (*results, *sums.slopes[len(sums.slopes) - self.slope_count :])

    def step_gradient(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Gradients of a step's start and first slope; those of tensors, added to sums."""
        given = inputs[: 1 + self.tableau.reuses_last_stage]
        return self._gradient(
            self.step, given, inputs[len(given) :], skip=1 if self.adaptive else None
        )

    def slope_gradient(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Gradient of the field's state; those of tensors, added to sums."""
        return self._gradient(self.slope, inputs[:1], inputs[1:])

    def _gradient(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        given: Sequence[Tensor],
        others: Sequence[Tensor],
        skip: int | None = None,
    ) -> tuple[Tensor, ...]:
        numbers, count = others[0], 1 + len(self.tensors)
        tensors, sums = list(others[1:count]), others[count : count + len(self.summed)]
        cotangents = others[count + len(self.summed) :]
        with torch.enable_grad():
            given = [one.detach().requires_grad_() for one in given]
            for place in self.summed:
                tensors[place] = tensors[place].detach().requires_grad_()
            results = list(function(*given, numbers, *tensors))
            if skip is not None:
                del results[skip]
            wanted = [*given, *(tensors[place] for place in self.summed)]
            pairs = zip(results, cotangents, strict=True)
            pairs = [pair for pair in pairs if pair[0].requires_grad]
            found: Sequence[Tensor | None] = [None] * len(wanted)
            if pairs:
                ends, slopes = zip(*pairs, strict=True)
                found = torch.autograd.grad(ends, wanted, slopes, allow_unused=True)
        states = [
            torch.zeros_like(one) if slope is None else slope.contiguous()
            for one, slope in zip(given, found, strict=False)
        ]
        added = zip(sums, found[len(given) :], strict=True)
        return (*states, *(total if one is None else total + one for total, one in added))

    def graphs(self) -> dict[str, tuple[Callable[..., Any], list[Tensor]]]:
        """The functions that the loop calls, by name, each with examples of its inputs."""
        inputs = [torch.zeros(4, dtype=torch.float64), *(one.detach() for one in self.tensors)]
        state = self._states(1 + self.tableau.reuses_last_stage)
        graphs: dict[str, Any] = {
            "slope": (self.slope, [*state[:1], *inputs]),
            "step": (self.step, [*state, *inputs]),
        }
        if self.differentiable:
            for place in self.summed:
                like = self.tensors[place]
                inputs.append(torch.empty(like.shape, dtype=like.dtype))
            ends, slopes = self._states(1), self._states(self.slope_count)
            graphs["step_gradient"] = (self.step_gradient, [*state, *inputs, *ends, *slopes])
            if self.tableau.reuses_last_stage:
                graphs["slope_gradient"] = (self.slope_gradient, [*state[:1], *inputs, *ends])
        return graphs

    def _states(self, count: int) -> list[Tensor]:
        # Separate tensors: one that is given twice would be traced as one input.
        return [torch.empty_like(self.y) for _ in range(count)]

    def constants(self) -> str:
        """Constants of `loop.cpp`, in C++."""
        tableau, y = self.tableau, self.y
        stages = len(tableau.stages)
        lines = [
            f"#define REAL {'float' if y.dtype == torch.float32 else 'double'}",
            f"#define STAGES {stages}",
            f"#define REUSES {int(tableau.reuses_last_stage)}",
            f"#define MEASURED {int(self.adaptive)}",
            f"#define SLOPES {self.slope_count}",
            f"#define DIFFERENTIABLE {int(self.differentiable)}",
            f"#define DEGREES {len(tableau.dense[0])}",
            f"static const int64_t NUMBERS = {y.numel()}, STATE_DIM = {y.dim()};",
            _array("int64_t", "STATE_SIZES", y.shape),
            _array("int64_t", "STATE_STRIDES", y.stride()),
            f"static const auto STATE_DTYPE = aoti_torch_dtype_{_DTYPES[y.dtype]};",
            "static const double DENSE[STAGES][DEGREES] = {"
            + ", ".join("{" + ", ".join(map(float.hex, row)) + "}" for row in tableau.dense)
            + "};",
            "struct Kind { int64_t dim; const int64_t *sizes, *strides; int32_t (*dtype)(); };",
        ]
        kinds = []
        for place, one in enumerate(self.tensors):
            lines.append(_array("int64_t", f"SIZES_{place}", one.shape))
            lines.append(_array("int64_t", f"STRIDES_{place}", one.stride()))
            kind = f"SIZES_{place}, STRIDES_{place}, aoti_torch_dtype_{_DTYPES[one.dtype]}"
            kinds.append(f"{{{one.dim()}, {kind}}}")
        lines.append(f"static const int64_t TENSOR_COUNT = {len(kinds)};")
        lines.append(_array("Kind", "TENSORS", kinds or ["{}"]))
        lines.append(f"static const int64_t SUM_COUNT = {len(self.summed)};")
        lines.append(_array("int64_t", "SUMMED", self.summed))
        like = [torch.empty(self.tensors[place].shape, device="meta") for place in self.summed]
        for place, one in enumerate(like):
            lines.append(_array("int64_t", f"SUM_STRIDES_{place}", one.stride()))
        names = [f"SUM_STRIDES_{place}" for place in range(len(like))]
        lines.append(_array("int64_t* const", "SUM_STRIDES", names or ["nullptr"]))
        sizes = [self.tensors[place].nbytes for place in self.summed]
        lines.append(_array("int64_t", "SUM_BYTES", sizes))
        return "\n".join(lines) + "\n"


def _array(kind: str, name: str, values: Sequence[Any]) -> str:
    # C++ has no empty arrays.
    return f"static const {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};"


def load_library(recipe: Recipe, vector_bits: int | None) -> ctypes.CDLL:
    """The library of a recipe, from disk if it has been made before.

    Raises:
        CannotCompile: If it cannot be made.
    """
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    options = {
        "cpp.simdlen": vector_bits,
        "cpp.vec_isa_ok": None if vector_bits is None else True,  # torch itself uses it
        "cpp_wrapper": True,
        "cpp_wrapper_build_separate": True,
        "graph_partition": False,
    }
    folder = Path(cache_dir()) / "bfno"
    path = folder / f"{_fingerprint(recipe, options)}.so"
    if not path.exists():
        try:
            with config.patch(options):
                _build(_source(recipe), path)
        except CannotCompile:
            raise
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            raise CannotCompile(
                f"it could not be built ({type(error).__name__}: {text[0]})"
            ) from error
    return _declare(ctypes.CDLL(str(path)))


def _declare(library: Any) -> ctypes.CDLL:
    pointer = ctypes.c_void_p
    library.loop_solve.argtypes = [pointer, pointer, pointer, pointer, pointer, ctypes.c_int64]
    library.loop_solve.restype = pointer
    library.loop_differentiate.argtypes = [pointer, pointer, pointer, pointer, pointer]
    library.loop_differentiate.restype = None
    library.loop_counts.argtypes = [pointer, pointer, pointer, pointer]
    library.loop_counts.restype = None
    library.loop_ends.argtypes, library.loop_ends.restype = [pointer], pointer
    library.loop_error.argtypes, library.loop_error.restype = [pointer], ctypes.c_char_p
    library.loop_free.argtypes, library.loop_free.restype = [pointer], None
    return library


def _fingerprint(recipe: Recipe, options: dict[str, Any]) -> str:
    """A name that differs whenever the machine code would."""
    graph, hasher = recipe.field.graph, hashlib.sha256()
    parts: list[Any] = [
        torch.__version__,
        torch._inductor.__file__,
        Path(__file__).read_bytes(),
        _LOOP.read_bytes(),
        [part.code for part in graph.modules() if isinstance(part, GraphModule)],
        recipe.field.roles,
        recipe.constants(),
        recipe.tableau.stages,
        recipe.tableau.weights,
        recipe.tableau.error,
        options,
        torch.get_num_threads(),
        has_blas(),
        os.environ.get("CXX"),
    ]
    for name, one in [*graph.named_parameters(), *graph.named_buffers()]:
        parts += [name, one.dtype, one.shape, one.detach().tolist()]
    functions = [node.target for node in graph.graph.nodes if callable(node.target)]
    is_plain = all(isinstance(part, GraphModule) for part in graph.modules())
    if not is_plain or not all(map(_is_torch_function, functions)):
        parts.append(os.urandom(16))  # the user's function may have changed
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else repr(part).encode())
    return hasher.hexdigest()[:40]


def _is_torch_function(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins", "")


def has_blas() -> bool:
    """Whether torch brings a BLAS that can be called directly."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return (
        torch.backends.mkl.is_available()
        and library.exists()
        and hasattr(ctypes.CDLL(str(library)), "sgemm_")
    )


def _source(recipe: Recipe) -> str:
    parts, includes = [recipe.constants()], dict[str, None]()
    for name, (function, examples) in recipe.graphs().items():
        code = _lower(_trace(function, examples))
        includes |= dict.fromkeys(_INCLUDE.findall(code))
        if "torch::stable" in code:
            includes["#include <torch/csrc/stable/library.h>"] = None
        parts.append(f"namespace {name} {{\n{_INCLUDE.sub('', code)}\n}}\n")
    # The compiler's own header is for Python, and takes seconds to read.
    needed = [one for one in includes if "inductor/cpp_wrapper" not in one]
    return "\n".join([*needed, ""]) + _LOOP.read_text().replace("// GRAPHS\n", "".join(parts))


def _trace(function: Callable[..., Any], examples: list[Tensor]) -> GraphModule:
    """The operations of a function that change nothing in place."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {**select_decomp_table(), torch.ops.aten.tanh.default: _tanh}
    with torch.no_grad():
        plain = make_fx(function, tracing_mode="fake")(*examples)
        pure = make_fx(
            torch.func.functionalize(plain), decomposition_table=table, tracing_mode="fake"
        )(*examples)
    pure.graph.eliminate_dead_code()
    for node in pure.graph.nodes:
        if node.op == "get_attr":
            raise CannotCompile("the field makes tensors from numbers; make them in its __init__")
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                raise CannotCompile("the field draws random numbers")
            if node.target._schema.is_mutable:
                raise CannotCompile("the field changes a tensor in place")
    pure.recompile()
    return pure


def _tanh(x: Tensor) -> Any:
    """The hyperbolic tangent as a quotient of polynomials, in a third of the time."""
    if x.dtype != torch.float32:
        return NotImplemented
    x = x.clamp(-7.90531110763549805, 7.90531110763549805)
    square = x * x
    above, below = -2.76076847742355e-16, 1.19825839466702e-06
    for c in (
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ):
        above = above * square + c
    for c in (1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03):
        below = below * square + c
    return x * above / below


def _lower(graph: GraphModule) -> str:
    """The C++ code of a graph, as torch's compiler writes it."""
    from torch._inductor.compile_fx import fake_tensor_prop
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    view_to_reshape(graph)
    with torch.no_grad(), DebugContext():
        fake_mode = fake_tensor_prop(graph, inputs)
        with V.set_fake_mode(fake_mode):
            post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(
                graph, example_inputs=inputs, cpp_wrapper=True, aot_mode=False, is_inference=True
            )
            with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
                lowering.run(*inputs)
                text = lowering.codegen_with_cpp_wrapper()[0].value
    if lowering.constants:
        raise CannotCompile("the field makes tensors from numbers; make them in its __init__")
    sources = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("cpp_wrapper_src", "kernel_src")
    }
    code = sources["cpp_wrapper_src"] + sources["kernel_src"]
    if "PyObject" in code:  # an operation that C++ cannot call
        raise CannotCompile("the field needs Python for one of its operations")
    # Every graph numbers its kernels from zero.
    return re.sub(r'extern "C"\s+void', "static void", code)


def _build(source: str, path: Path) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    path.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-DBLAS"] if has_blas() else []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code = Path(folder) / "solve.cpp"
        code.write_text(source)
        options = cpp_builder.CppTorchOptions(vec_isa=pick_vec_isa(), extra_flags=flags)
        builder = cpp_builder.CppBuilder(
            name="solve", sources=str(code), output_dir=folder, BuildOption=options
        )
        builder.build()
        os.replace(builder.get_target_file_path(), path)
