"""What the lessons' toolkit asks of llvmlite and of Numba's intrinsics, by numba-cuda-mlir: LLVM's dialect of MLIR.

So a helper is written once for both compilers. Tried with 0.6.0, for compute capability 8.0 and newer.
"""

from __future__ import annotations

import functools
import itertools
from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from numba_cuda_mlir import extending, tools, types
from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import arith, builtin, llvm
from numba_cuda_mlir.lowering_utilities import convert, get_conversion_signedness, memref_data_pointer
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.numba_cuda import cudadrv
from numba_cuda_mlir.numba_cuda.core import ir as numba_ir
from numba_cuda_mlir.numba_cuda.types.functions import NamedTupleClass

_DYNAMIC = -(2**31)  # in place of a constant index: it is an operand

# --- llvmlite's types and values; MLIR's belong to a context that is there only while a kernel is compiled ---


@dataclass
class Type:
    """A type of LLVM, in MLIR's words; a pointer's knows ``to`` what, which MLIR's do not. Called: a constant."""

    text: str
    to: Any = None

    def __call__(self, number: Any) -> Value:
        return Value(self, number)

    def as_pointer(self, space: int = 0) -> Type:
        return Type(f"!llvm.ptr<{space}>", self)


@dataclass
class Value:
    """A pointer; or a constant, which becomes an operation where it is used."""

    type: Any
    held: Any


Assembly = namedtuple("Assembly", "result text constraints side_effect", defaults=[False])


def _type(its_type: Any) -> Any:
    return mlir.Type.parse(its_type.text) if isinstance(its_type, Type) else its_type


def _value(value: Any) -> Any:
    """An operand in MLIR."""
    if not isinstance(value, Value):
        return value
    is_pointer = isinstance(value.type, Type) and value.type.to is not None
    return value.held if is_pointer else arith.constant(_type(value.type), value.held)


def _operation(operation: Any) -> Any:
    """A method of the builder's, which hands its operands to MLIR's operation."""
    return lambda _, *operands: operation(*map(_value, operands))


def _conversion(operation: Any) -> Any:
    return lambda _, value, to: operation(_type(to), _value(value))


class Builder:
    """``llvmlite.ir.IRBuilder``: its code goes to where MLIR is inserting."""

    add, mul, select = map(_operation, (arith.addi, arith.muli, arith.select))
    ptrtoint, zext, trunc = map(_conversion, (llvm.ptrtoint, arith.extui, arith.trunci))

    def load(self, pointer: Value, align: int | None = None) -> Any:
        return llvm.load(_type(pointer.type.to), pointer.held, alignment=align)

    def store(self, value: Any, pointer: Value, align: int | None = None) -> None:
        llvm.store(_value(value), pointer.held, alignment=align)

    def gep(self, pointer: Value, indices: list[Any]) -> Value:
        (index,), base = indices, pointer.held
        found = llvm.getelementptr(base.type, base, [_value(index)], [_DYNAMIC], _type(pointer.type.to), None)
        return Value(pointer.type, found)

    def bitcast(self, value: Any, to: Type) -> Any:
        return llvm.bitcast(_type(to), _value(value)) if to.to is None else Value(to, value.held)

    def addrspacecast(self, pointer: Value, to: Type) -> Value:
        return Value(to, llvm.addrspacecast(_type(to), pointer.held))

    def extract_value(self, aggregate: Any, n: int) -> Any:
        return llvm.extractvalue(llvm.StructType(aggregate.type).body[n], aggregate, [n])

    def call(self, code: Assembly, operands: list[Any]) -> Any:
        given = list(map(_value, operands)), code.text, code.constraints
        return llvm.inline_asm(code.result and _type(code.result), *given, has_side_effects=code.side_effect)


# --- Numba's context and intrinsics ---


class Context:
    """Numba's target context, while an intrinsic is compiled whose result goes to ``target``."""

    _numbers = itertools.count()

    def __init__(self, lower: Any, target: Any) -> None:
        self.lower, self.target = lower, target

    def cast(self, _: Any, value: Any, source: Any, target: Any) -> Any:
        signed = get_conversion_signedness(source, target)
        return convert(_value(value), self.lower.get_value_type(target), signed=signed)

    def arguments(self, variables: list[Any], wanted: Any) -> list[Any]:
        """The values of variables, numbers as the types that are wanted."""
        found = []
        for variable, kind in zip(variables, wanted, strict=False):
            value = self.lower.load_var(variable)
            if isinstance(kind, (types.Number, types.Boolean)):
                value = self.cast(None, value, self.lower.get_numba_type(variable.name), kind)
            found.append(value)
        return found

    def get_dummy_value(self) -> None:
        return None

    def get_function(self, function: Any, signature: Any) -> Any:
        """The code of one of Numba's operations. It is for variables, so operands and the result become some."""

        def code(_: Any, values: list[Any]) -> Any:
            operands = [self._variable(*pair) for pair in zip(signature.args, values, strict=True)]
            result = self._variable(signature.return_type)
            self.lower.get_registered_builder(function, signature)(self.lower, result, operands, [])
            return self.lower.load_var(result)

        return code

    def _variable(self, kind: Any, value: Any = None) -> Any:
        name = f"$operand{next(self._numbers)}"
        self.lower.fndesc.typemap[name] = kind
        if value is not None:
            self.lower.varmap[name] = value
        return numba_ir.Var(self.target.scope, name, self.target.loc)


def intrinsic(function: Any) -> Any:
    """Numba's decorator: ``function(typing_context, *types)`` gives a signature, and code for llvmlite's builder."""

    @functools.wraps(function)
    def typed(*given: Any) -> Any:
        made = function(*given)
        if made is None:
            return None
        signature, generate = made

        def lowered(lower: Any, target: Any, args: list[Any], _: Any) -> None:
            context = Context(lower, target)
            result = _value(generate(context, Builder(), signature, context.arguments(args, signature.args)))
            if result is not None:
                wanted = lower.get_value_type(signature.return_type)
                result = result if result.type == wanted else llvm.bitcast(wanted, result)
            lower.store_var(target, result)

        return signature, lowered

    made = extending.intrinsic(typed)
    extending.refresh_registries(target=False, include_uninitialized_cuda=False)  # what was typed before knows it not
    return made


# --- where the compiler falls short ---


def _build_named_tuples() -> None:
    """Let kernels call the class of a named tuple, to which this compiler gives no code."""
    registered = MLIRLower.get_registered_builder

    def build(lower: Any, target: Any, args: list[Any], _: Any) -> None:
        wanted = lower.get_numba_type(target.name).types
        lower.store_var(target, tuple(Context(lower, target).arguments(args, wanted)))

    def builder(lower: Any, function: Any, signature: Any) -> Any:
        its_type = isinstance(function, numba_ir.Var) and lower.get_numba_type(function.name)
        return build if isinstance(its_type, NamedTupleClass) else registered(lower, function, signature)

    MLIRLower.get_registered_builder = builder


_VIEW = "!llvm.struct<(ptr<3>, ptr<3>, i64, array<1 x i64>, array<1 x i64>)>"  # of a memref: offset, extent, stride
_MEMORY = "llvm.mlir.global external @dynamic() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<0 x i8>"


def _declare_dynamic_memory() -> None:
    """Let dynamic shared memory begin behind the static: this compiler has both begin at one address."""

    def base(lower: Any) -> Any:
        if lower._shared_memory_base is None:
            with mlir.InsertionPoint.at_block_begin(lower.mlir_gpu_module.operation.regions[0].blocks[0]) as top:
                top.insert(mlir.Operation.parse(_MEMORY))
            with mlir.InsertionPoint.at_block_begin(lower.mlir_funcOp.entry_block):
                word, long = _type(Type("i32")), _type(Type("i64"))
                size = llvm.zext(long, llvm.inline_asm(word, [], "mov.u32 $0, %dynamic_smem_size;", "=r"))
                address = llvm.AddressOfOp(_type(Type("!llvm.ptr<3>")), "dynamic").result
                offset, stride = (arith.constant(long, number) for number in (0, 1))
                view = llvm.UndefOp(_type(Type(_VIEW)))
                for value, place in (address, [0]), (address, [1]), (offset, [2]), (size, [3, 0]), (stride, [4, 0]):
                    view = llvm.insertvalue(view, value, place)
                dynamic, space = mlir.ShapedType.get_dynamic_size(), lower._get_shared_address_space()
                kind = mlir.MemRefType.get([dynamic], _type(Type("i8")), memory_space=space)
                lower._shared_memory_base = builtin.unrealized_conversion_cast([kind], [view])
        return lower._shared_memory_base

    MLIRLower._get_shared_memory_base = base


# --- modules ---


def _array(_: Any) -> Any:
    """Numba's view of an array as a structure; the toolkit asks for where the elements begin."""

    def view(*_: Any, value: Any) -> Any:
        return SimpleNamespace(data=Value(Type("!llvm.ptr<0>", value.type.element_type), memref_data_pointer(value)))

    return view


def _options() -> Any:
    """Numba's stack of options; the toolkit asks what it compiles for."""
    options = SimpleNamespace(compute_capability=tools.get_gpu_compute_capability(tuple))
    return SimpleNamespace(top=lambda: options)


@functools.cache
def modules() -> dict[str, ModuleType]:
    """By name the modules that the toolkit imports, of llvmlite and of Numba."""
    _build_named_tuples()
    _declare_dynamic_memory()
    names: dict[str, dict[str, Any]] = {
        "llvmlite.ir": {
            "IntType": lambda bits: Type(f"i{bits}"), "FloatType": lambda: Type("f32"), "VoidType": lambda: None,
            "VectorType": lambda element, count: Type(f"vector<{count}x{element.text}>"), "Constant": Value,
            "LiteralStructType": lambda parts: Type(f"!llvm.struct<({', '.join(part.text for part in parts)})>"),
            "FunctionType": lambda result, _: result, "InlineAsm": Assembly,
        },
        "llvmlite": {}, "numba.core": {}, "numba.core.targetconfig": {"ConfigStack": _options},
        "numba.cuda.cgutils": {"create_struct_proxy": _array}, "numba.cuda.extending": {"intrinsic": intrinsic},
    }  # fmt: skip
    made = {name: ModuleType(name) for name in names}
    for name, module in made.items():
        vars(module).update(names[name])
    made["llvmlite"].ir = made["llvmlite.ir"]  # type: ignore[attr-defined]
    return {**made, "numba.cuda.cudadrv": cudadrv, "numba.cuda.cudadrv.error": cudadrv.error}
